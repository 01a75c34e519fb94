"""The script that reports on the runs of a recipe."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import ROOT

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.scoring.bleu import bleu, tokenized_bleu
from nmtkit.training.state import RunState

SOURCE = ["kat pam tel mol sen pas", "pel <b>kal</b> & tam mes pan kol", "tas"]
REFERENCE = ["PAS SEN MOL TEL PAM KAT", "KOL PAN MES TAM & <b>KAL</b> PEL", "TAS"]

Report = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def recipe(make_checkpoint: Callable[..., Checkpoint], tmp_path: Path) -> Path:
    """A folder with a test set and two runs with the seeds 1 and 2, one with the reference as its translation."""
    for seed, translation in ((1, REFERENCE), (2, [*REFERENCE[:2], "KAT"])):
        run = tmp_path / f"seed-{seed}"
        (run / "checkpoints").mkdir(parents=True)
        checkpoint = make_checkpoint(seed)
        save_checkpoint(run / "averaged.pt", checkpoint)
        checkpoint.progress = {**asdict(RunState(update=40, epoch=3)), "options": {"batches": {"seed": seed}}}
        save_checkpoint(run / "checkpoints/checkpoint_last.pt", checkpoint)
        write(run / "checkpoints/metrics.jsonl", ['{"event": "train", "update": 40, "loss": 2.5}'])
        write(run / "translation.de", translation)
        write(run / "train.command", [f"nmt-train data-bin --seed {seed}"])
    write(tmp_path / "preprocess.command", ["nmt-preprocess -s en -t de"])
    write(tmp_path / "test.en", SOURCE)
    write(tmp_path / "test.de", REFERENCE)
    return tmp_path


def write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def report(recipe: Path) -> Report:
    """Run the script in the folder of the recipe."""

    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        test = ("--source", "test.en", "--reference", "test.de", "--target-lang", "de")
        command = [sys.executable, ROOT / "examples/report.py", *arguments, *test]
        return subprocess.run(
            [str(word) for word in command],
            cwd=recipe,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            timeout=PATIENCE,
            check=False,
        )

    return run


class Page(HTMLParser):
    """The texts of a page's cells, and the addresses that it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.references: list[str] = []
        self._in_cell = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        self._in_cell = tag == "td"
        if self._in_cell:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data


def test_a_report_has_scores_curves_cost_translations_attention_and_commands(report: Report, recipe: Path) -> None:
    done = report("seed-1", "seed-2", "--sacrebleu")
    assert done.returncode == 0, done.stderr
    page = (recipe / "report.html").read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings == ["Scores", "Training", "Cost", "Translations", "Attention", "Commands", "Machine"]
    assert page.count("<svg") == 3  # the curves, and the attention of two sentences
    for command in ("nmt-preprocess -s en -t de", "nmt-train data-bin --seed 1", "nmt-train data-bin --seed 2"):
        assert page.count(command) == 1
    assert {*SOURCE, *REFERENCE} <= {*Page(recipe / "report.html").cells}
    assert page.count('<td data-label="source" dir="auto">') == len(SOURCE)  # Arabic and Hebrew are read from the right


def test_a_report_needs_no_other_file(report: Report, recipe: Path) -> None:
    assert report("seed-1", "--sacrebleu").returncode == 0
    references = Page(recipe / "report.html").references
    assert [reference for reference in references if not reference.startswith(("#", "data:"))] == []


def test_the_scores_of_several_seeds_end_in_mean_and_standard_deviation(report: Report) -> None:
    second = bleu([*REFERENCE[:2], "KAT"], REFERENCE, "de").value
    mean, deviation = (100 + second) / 2, (100 - second) / 2**0.5
    line, *_ = report("seed-1", "seed-2", "--sacrebleu").stdout.splitlines()
    assert line == f"BLEU {mean:.2f} ± {deviation:.2f} (seed 1: 100.00, seed 2: {second:.2f})"


def test_the_score_of_one_run_stands_alone(report: Report) -> None:
    value = tokenized_bleu([*REFERENCE[:2], "KAT"], REFERENCE).value
    assert report("seed-2", "--tokenized-bleu").stdout == f"BLEU {value:.2f}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("seed-1",), "no metric: give --sacrebleu or --tokenized-bleu"),
        (("seed-3", "--sacrebleu"), "cannot read seed-3/translation.de"),
        (("short", "--sacrebleu"), "short/translation.de has 1 line, the reference has 3"),
    ],
)
def test_an_unfinished_run_is_refused_in_one_line(
    arguments: tuple[str, ...], message: str, report: Report, recipe: Path
) -> None:
    (recipe / "short").mkdir()
    write(recipe / "short/translation.de", REFERENCE[:1])
    done = report(*arguments)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, message in line) == (2, True), line
    assert not (recipe / "report.html").exists()
