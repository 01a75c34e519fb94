"""Scores of several systems against sacreBLEU's own command."""

import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from nmtkit.errors import UserError
from nmtkit.scoring.comparison import Comparison, as_lines, as_table, compare, read_texts
from nmtkit.scoring.config import ScoreConfig, SignificanceConfig

TEXT = "der hund die katze ein kind läuft schläft spielt über unter auf straße garten ball , und"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two references; a good system, one of the same quality and a bad one."""
    folder, draw, words = tmp_path_factory.mktemp("texts"), random.Random(2), TEXT.split()
    reference = [draw.choices(words, k=draw.randint(4, 12)) for _ in range(60)]
    for name, noise in (("reference", 0.0), ("second", 0.5), ("good", 0.2), ("alike", 0.2), ("bad", 0.6)):
        lines = [
            " ".join(draw.choice(words) if draw.random() < noise else word for word in sentence)
            for sentence in reference
        ]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def compared(
    folder: Path, systems: Sequence[str], references: Sequence[str] = ("reference",), language: str = "cs", **test: Any
) -> list[Comparison]:
    paths = tuple(folder / name for name in references)
    texts = read_texts([folder / name for name in systems], paths)
    return compare(*texts, ScoreConfig(reference=paths, target_lang=language), SignificanceConfig(**test))


def by_sacrebleu(folder: Path, arguments: Sequence[str], systems: Sequence[str]) -> list[list[float]]:
    """The numbers of BLEU and chrF2 for each system, from the table in LaTeX: its JSON fails for --paired-bs."""
    command = [sys.executable, "-m", "sacrebleu", *arguments, "-m", "bleu", "chrf", "-w", "6", "--format", "latex"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, check=True, text=True, encoding="utf-8", timeout=PATIENCE
    )
    rows = [re.search(rf"^ +(?:Baseline: )?{system} &(.*)&(.*)\\\\$", done.stdout, re.MULTILINE) for system in systems]
    return [[float(number) for number in re.findall(r"\d+\.\d+", cell)] for row in rows if row for cell in row.groups()]


def test_scores_intervals_and_p_values_match_the_sacrebleu_command(folder: Path) -> None:
    systems, references = ["good", "alike", "bad"], ["reference", "second"]
    arguments = [*references, "-i", *systems, "--paired-bs"]
    comparisons = compared(folder, systems, references, paired_bs=True)
    found = [
        [value for value in (score.value, score.mean, score.interval, score.p_value) if value is not None]
        for scores in zip(*(comparison.scores.values() for comparison in comparisons), strict=True)
        for score in scores
    ]
    expected = by_sacrebleu(folder, arguments, systems)
    assert len(found) == len(expected) == 6
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=6e-5)  # p-values have four decimals
    assert all("|nrefs:2|bs:1000|seed:12345|" in comparison.signature for comparison in comparisons)


def test_only_a_worse_system_differs_significantly_from_the_baseline(folder: Path) -> None:
    (folder / "same").write_bytes((folder / "good").read_bytes())
    for comparison in compared(folder, ["good", "same", "alike", "bad"], paired_bs=True):
        baseline, same, alike, bad = (score.p_value for score in comparison.scores.values())
        assert (baseline, same) == (None, 1.0)
        assert alike is not None
        assert bad is not None
        assert bad < 0.01 < 0.05 < alike


def test_the_resampling_seed_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimates(seed: str) -> list[float | None]:
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        comparisons = compared(folder, ["good"], confidence=True)
        assert all(f"|bs:1000|seed:{seed}|" in comparison.signature for comparison in comparisons)
        return [score.mean for comparison in comparisons for score in comparison.scores.values()]

    assert estimates("7") == estimates("7") != estimates("8")


@pytest.mark.parametrize("seed", ["0", "x"])
def test_a_bad_seed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    with pytest.raises(UserError, match=f"SACREBLEU_SEED is .{seed}"):
        compared(folder, ["good"], confidence=True)


def test_systems_are_scored_separately_without_a_significance_test(folder: Path) -> None:
    (together, _), (alone, _) = compared(folder, ["bad", "good"]), compared(folder, ["good"])
    assert together.scores[str(folder / "good")] == alone.scores[str(folder / "good")]
    assert together.scores[str(folder / "good")].value > together.scores[str(folder / "bad")].value


def test_a_table_has_only_the_columns_that_have_values(folder: Path) -> None:
    assert as_table(compared(folder, ["good"])).columns == ["metric", "score"]
    assert as_table(compared(folder, ["good", "bad"])).columns == ["metric", "system", "score"]
    table = as_table(compared(folder, ["good", "bad"], paired_bs=True))
    assert table.columns == ["metric", "system", "score", "mean, 95 % interval", "p-value"]
    assert [row[0] for row in table.rows] == ["BLEU 13a", "", "chrF2", ""]


def test_plain_lines_name_each_system_once_below_the_signature(folder: Path) -> None:
    comparisons = compared(folder, ["good", "bad"])
    signature, note, *systems = as_lines(comparisons)[:4]
    assert signature == comparisons[0].signature
    assert note == f"    {comparisons[0].note}"
    assert [line.split()[0] for line in systems] == [str(folder / "good"), str(folder / "bad")]
    assert as_lines(comparisons, rows=False)[:3] == [signature, note, comparisons[1].signature]


def test_a_significance_test_of_a_single_system_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="two or more translations"):
        compared(folder, ["good"], paired_bs=True)


def test_a_file_with_missing_lines_is_reported_with_its_first_missing_line(folder: Path) -> None:
    short = folder / "short"
    short.write_text("\n\n", encoding="utf-8")
    for files in ((["good", "short"],), (["good"], ["reference", "short"]), (["good"], ["short"])):
        with pytest.raises(UserError, match=f"{short} has no line 3"):
            compared(folder, *files)


def test_a_file_that_is_given_twice_is_refused(folder: Path) -> None:
    for arguments in (["good", "good"], ["reference"]), (["good"], ["reference", "reference"]):
        with pytest.raises(UserError, match="is given twice: give each file once"):
            compared(folder, *arguments)


def test_a_resample_of_blank_lines_has_a_confidence_interval(tmp_path: Path) -> None:
    (tmp_path / "system").write_text("ein Hund\n\n")
    (tmp_path / "reference").write_text("ein Hund\n\n")
    found = compared(tmp_path, ["system"], language="de", confidence=True)
    assert all(one.interval is not None for one in found[-1].scores.values())  # of chrF: BLEU is 0
