"""The Table 3 recipe: rows as options of nmt-train, the steps that make repeats, and the printed tables."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import by_length
import pytest
import table3
import variations
from recipe_commands import REAL, STUBS, Make, called, make_with, parsed
from repository import ROOT
from result import Result

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS
from nmtkit.storage.run_files import LAST

SIZES = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 8, "d_ff": 8, "key_size": 8, "value_size": 8}


def model_of(options: dict[str, Any]) -> TransformerConfig:
    model = options["model"]
    assert isinstance(model, TransformerConfig)
    return model


def test_the_rows_are_the_presets_of_table_3_with_base_and_big() -> None:
    rows = {name for name in PRESETS if name.startswith("table3_")} | {"transformer_base", "transformer_big"}
    assert {variations.arch(row) for row in variations.ROWS} == rows


@pytest.mark.parametrize("row", variations.ROWS)
def test_an_unscaled_row_equals_its_preset(row: str) -> None:
    preset, ours = parsed("--arch", variations.arch(row)), parsed(*variations.options(row, 1, 1))
    assert model_of(ours).effective() == model_of(preset).effective()
    assert ours | {"model": None} == preset | {"model": None}


@pytest.mark.parametrize("row", variations.ROWS)
def test_a_scaled_row_has_all_sizes_divided_and_the_rest_unchanged(row: str) -> None:
    full, small = (model_of(parsed(*variations.options(row, width, depth))) for width, depth in ((1, 1), (8, 2)))
    assert {name: getattr(small, name) * divisor for name, divisor in SIZES.items()} == {
        name: getattr(full, name) for name in SIZES
    }
    others = full.to_dict().keys() - {*SIZES, "d_k", "d_v"}
    assert {name: getattr(small, name) for name in others} == {name: getattr(full, name) for name in others}


@pytest.mark.parametrize(
    ("row", "width", "depth", "said"),
    [
        ("b_dk16", 32, 2, "b_dk16: d-k is 16, which 32"),
        ("c_n2", 8, 4, "c_n2: encoder-layers is 2, which 4"),
    ],
)
def test_sizes_that_are_not_divisible_are_refused(row: str, width: int, depth: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        variations.options(row, width, depth)


def test_ranges_of_lengths_have_no_gap() -> None:
    assert by_length.ranges(15) == [(1, 15), (16, 19), (20, 22), (23, 30), (31, None)]


def test_perplexity_is_computed_over_all_tokens() -> None:
    some = [by_length.Pair(1, "", "", [-1.0, -2.0]), by_length.Pair(1, "", "", [-6.0])]
    assert by_length.perplexity(some) == pytest.approx(20.0855, abs=1e-3)  # e^3


def test_models_are_compared_in_each_range_of_lengths(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["ein hund", "a cat", "the dog runs and runs", "die katze läuft über die straße und zurück"]
    (tmp_path / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = tmp_path / "text"
    by_length.print_table(text, text, "de", 6, {"one": tiny_checkpoint, "two": tiny_checkpoint})
    header, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert header == ["tokens", "pairs", "perplexity, one", "perplexity, two", "BLEU, one", "BLEU, two"]
    assert sum(int(row[1]) for row in rows) == len(lines)
    assert len(rows) > 1
    assert all(row[2] == row[3] and row[4] == row[5] for row in rows)


def test_models_of_different_lengths_of_training_are_not_compared(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = []
    for updates in (4, 12):
        last = tmp_path / str(updates) / "checkpoints" / LAST
        last.parent.mkdir(parents=True)
        save_checkpoint(last, replace(make_checkpoint(), progress={"update": updates}))
        models.append(f"after {updates}={tmp_path / str(updates)}")
    with pytest.raises(SystemExit):
        by_length.main(["text", "text", "de", "6", *models])
    assert "(after 4 4, after 12 12): give make UPDATES=12 or more" in capsys.readouterr().err


def reached(perplexity: float, bleu: float = 1.0, updates: int = 1, seed: int = 1, batch_tokens: int = 4096) -> Result:
    return Result(
        row="base",
        seed=seed,
        updates=updates,
        settings={"batch_tokens": batch_tokens},
        model=TransformerConfig().to_dict(),
        parameters=1,
        minutes=1.0,
        processor_minutes=1.0,
        flops=1,
        perplexity=perplexity,
        bleu=bleu,
        command="nmt-train",
        machine={"date": "today"},
    )


def compared(row: str, results: table3.Results, measure: table3.Measure = table3.log_perplexity) -> str:
    """Whether the difference of a row from base is as in the paper."""
    paper = measure(reached(variations.ROWS[row].perplexity)) - measure(reached(variations.ROWS["base"].perplexity))
    _, difference = table3.compare(results, row, measure)
    assert difference is not None
    return table3.verdict(difference, paper)


def test_a_row_agrees_with_the_paper_only_if_its_difference_exceeds_that_between_seeds() -> None:
    base = [reached(9.9), reached(10.0), reached(10.1)]
    worse, better = ([reached(factor * one.perplexity) for one in base] for factor in (1.1, 0.9))
    assert compared("c_n2", {"base": base, "c_n2": worse}) == table3.AGREES  # worse in the paper
    assert compared("c_n2", {"base": base, "c_n2": better}) == table3.DISAGREES
    assert compared("c_n2", {"base": base, "c_n2": [reached(10.02), *base[1:]]}) == table3.UNKNOWN
    assert compared("c_n2", {"base": base[:1], "c_n2": worse[:1]}) == table3.UNKNOWN  # a single seed


def test_a_row_that_equals_base_in_the_paper_agrees_if_no_difference_is_found() -> None:
    base = [reached(9.9), reached(10.0), reached(10.1)]
    assert compared("e_learned", {"base": base, "e_learned": base[::-1]}) == table3.AGREES
    other = [reached(2 * one.perplexity) for one in base]
    assert compared("e_learned", {"base": base, "e_learned": other}) == table3.DISAGREES


def stored(**changes: object) -> str:
    return json.dumps(asdict(reached(9.9)) | changes)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"perplexity": 1}', "[" * 100_000, stored(row="c_n2"), stored(model=5), stored(perplexity="9.9")),
        *(
            stored(perplexity=None),
            stored(perplexity=0.0),
            stored(perplexity=math.inf),
            stored(bleu=math.nan),
            stored(updates="1"),
            stored(other=1),
        ),
    ],
)
def test_a_file_that_is_no_result_of_its_row_is_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.json").write_text(content)
    with pytest.raises(SystemExit) as exit:
        table3.main(["base", str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert (exit.value.code, "base.json is not a result of the row base" in line) == (2, True), line


def test_results_that_do_not_compare_are_refused() -> None:
    table3.check_comparable({"base": [reached(9.9, seed=1), reached(9.9, seed=2)], "c_n2": [reached(9.9, seed=1)]})
    with pytest.raises(UserError, match="base has several results of seed 1: give each seed once"):
        table3.check_comparable({"base": [reached(9.9), reached(9.8)]})
    with pytest.raises(UserError, match="were not trained alike: they differ in batch_tokens"):
        table3.check_comparable({"base": [reached(9.9)], "c_n2": [reached(9.9, batch_tokens=25000)]})


def test_models_of_other_sizes_are_refused() -> None:
    def of_size(row: str, seed: int, width: int, depth: int) -> Any:
        full = PRESETS[variations.arch(row)].model_config()
        assert isinstance(full, TransformerConfig)
        layers = {"encoder_layers": full.encoder_layers // depth, "decoder_layers": full.decoder_layers // depth}
        return replace(
            reached(9.9, seed=seed), row=row, model=full.to_dict() | layers | {"d_model": full.d_model // width}
        )

    table3.check_comparable({row: [of_size(row, 1, 4, 2), of_size(row, 2, 4, 2)] for row in ("base", "c_n8", "c_d256")})
    with pytest.raises(UserError, match=r"base of seed 1 and base of seed 2 .*: they differ in d_model"):
        table3.check_comparable({"base": [of_size("base", 1, 4, 2), of_size("base", 2, 8, 2)]})
    with pytest.raises(UserError, match=r"base of seed 1 and c_n8 of seed 1 .*: they differ in DEPTH"):
        table3.check_comparable({"base": [of_size("base", 1, 4, 2)], "c_n8": [of_size("c_n8", 1, 4, 1)]})


def test_rows_of_different_lengths_of_training_are_refused() -> None:
    variations.check_updates({"base": [2], "c_n2": [2, 2]})
    with pytest.raises(UserError, match=r"\(base 1, c_n2 1 or 2\): give make UPDATES=2 or more"):
        variations.check_updates({"base": [1], "c_n2": [2, 1, 2]})


def test_a_row_that_diverged_is_named_and_not_recorded(
    make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    checkpoint.progress["valid_ppl"] = None  # it is infinite
    (tmp_path / "base/checkpoints").mkdir(parents=True)
    save_checkpoint(tmp_path / "base/checkpoints" / LAST, checkpoint)
    with pytest.raises(UserError, match="base: the training has diverged"):
        Result.of(tmp_path / "base")


# --- with make

TEXT = ("CORPUS=text", "ENDING=", "SEEDS=1")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The folder of a copy of the recipe, with a small text in `text`."""
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "table3"
    (folder / "text").mkdir()
    for split, count in (("train", 60), ("val", 6)):
        for language in ("en", "de"):
            lines = [f"{language} {i % 7} a {'b c' * (i % 5)} {i % 3}\n" for i in range(count)]
            (folder / "text" / f"{split}.{language}").write_text("".join(lines))
    return folder


@pytest.fixture
def make(recipe: Path, tmp_path: Path) -> Make:
    return make_with(tmp_path / "bin", recipe, STUBS, *TEXT)


BASE, DEEP = "work/seed-1/base/checkpoints", "work/seed-1/c_n8/checkpoints"
LEARNED = "work/seed-1/e_learned/checkpoints"


def test_rows_share_a_dataset_and_are_trained_once(make: Make) -> None:
    assert called(make("rows", "ROWS=base c_n8")) == ["work/data-bin", BASE, DEEP]
    assert called(make("rows", "ROWS=base c_n8")) == []
    assert called(make("rows", "ROWS=base c_n8", "SEEDS=1 2")) == [BASE.replace("1", "2"), DEEP.replace("1", "2")]


def test_short_pairs_are_of_the_text_of_all_lengths(make: Make, recipe: Path) -> None:
    (recipe / "by_length.py").write_text("print('a table')\n")
    done = make("positions")
    assert done.stdout.endswith("a table\n"), done.stderr
    short = [place.replace("work", "work/short-15") for place in ("work/data-bin", BASE)]
    assert called(done) == ["work/data-bin", BASE, LEARNED, *short, LEARNED.replace("work", "work/short-15")]
    assert sorted(recipe.rglob("train.en")) == [recipe / "text/train.en", recipe / "work/text/train.en"]
    assert called(make("positions")) == []


@pytest.mark.parametrize("first", [".:", ""])
def test_the_folders_to_which_a_shell_goes_repeat_no_step(
    first: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CDPATH, `cd` prints where it goes, and may go to a folder elsewhere."""
    (tmp_path / "work/data-bin").mkdir(parents=True)
    (tmp_path / "work/data-bin/dataset.json").write_text('{\n "lost.bin": {\n  "bytes": 3}}\n')
    monkeypatch.setenv("CDPATH", f"{first}{tmp_path}")
    make = make_with(tmp_path / "bin", recipe, STUBS, *TEXT)
    assert called(make("rows", "ROWS=base")) == ["work/data-bin", BASE]
    assert called(make("rows", "ROWS=base")) == []


def test_results_that_are_dated_in_the_future_are_refused(make: Make, recipe: Path) -> None:
    """As of a clock that went back: they would hide a changed command."""
    make("rows", "ROWS=base")
    averaged = recipe / "work/seed-1/base/averaged.pt"
    future = time.time() + 3600
    os.utime(averaged, (future, future))
    done = make("rows", "ROWS=base", "SEARCH=--beam 1")
    assert (done.returncode, called(done)) == (2, [])
    assert re.search(r"work/seed-1/base/averaged\.pt is dated (59|60) minutes in the future", done.stderr)
    os.utime(averaged)
    assert "nmt-generate" in make("rows", "ROWS=base", "SEARCH=--beam 1").stdout


def test_results_that_are_dated_seconds_ahead_do_not_hide_a_changed_command(make: Make, recipe: Path) -> None:
    """As of another machine, whose clock is ahead."""
    make("rows", "ROWS=base")
    scores = recipe / "work/seed-1/base/scores.txt"
    future = time.time() + 5
    os.utime(scores, (future, future))
    assert "nmt-generate" in make("rows", "ROWS=base", "SEARCH=--beam 1").stdout
    assert called(make("rows", "ROWS=base", "SEARCH=--beam 1")) == []


@pytest.mark.parametrize("short", ["7 8", "0", "015", "abc"])
def test_an_unusable_length_of_short_pairs_is_refused(short: str, make: Make) -> None:
    done = make("positions", f"SHORT={short}")
    assert (done.returncode, called(done)) == (2, [])
    assert f"SHORT={short}: give a number of tokens, at least 1, without leading zeros" in done.stderr


def test_an_interrupted_row_is_resumed_and_others_are_not_repeated(make: Make, recipe: Path) -> None:
    make("rows", "ROWS=base")
    (recipe / "stop").touch()
    broken = make("rows", "ROWS=base c_n8")
    assert (broken.returncode, called(broken)) == (2, [DEEP])
    (recipe / "stop").unlink()
    (recipe / DEEP / "before").touch()
    assert called(make("rows", "ROWS=base c_n8")) == [DEEP]
    assert (recipe / DEEP / "before").exists()


def test_more_updates_resume_training_and_other_changes_restart_it(make: Make, recipe: Path) -> None:
    make("rows", "ROWS=base")
    assert called(make("rows", "ROWS=base", "UPDATES=4000")) == [BASE]
    assert {path.name for path in (recipe / BASE).iterdir()} == {"3000", "4000"}
    assert called(make("rows", "ROWS=base", "UPDATES=4000", "WIDTH=8")) == [BASE]
    assert {path.name for path in (recipe / BASE).iterdir()} == {"4000"}


def test_settings_may_come_from_the_environment(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDATES", "50")
    monkeypatch.setenv("ROWS", "base")
    make = make_with(tmp_path / "bin", recipe, STUBS, *TEXT)
    assert called(make("rows")) == ["work/data-bin", BASE]
    assert {path.name for path in (recipe / BASE).iterdir()} == {"50"}


def test_an_unknown_row_is_refused(make: Make) -> None:
    done = make("rows", "ROWS=c_n3")
    assert done.returncode == 2
    assert "'c_n3' is not one of" in done.stderr


@pytest.mark.slow
def test_a_row_is_trained_scored_and_compared_with_the_paper(recipe: Path, tmp_path: Path) -> None:
    make = make_with(tmp_path / "real", recipe, REAL, *TEXT)
    asked = ("ROWS=base c_n2", "VOCAB_SIZE=30", "UPDATES=3", "WARMUP=2", "WIDTH=8", "SEEDS=1 2")
    done = make(*asked)
    assert done.returncode == 0, done.stderr
    report = (recipe / "work/report.md").read_text(encoding="utf-8")
    assert done.stdout.endswith(report)
    assert "4 trainings of 3 updates" in report
    (row,) = re.findall(r"^\| C \| N = 2 \|(.*)\|$", report, re.MULTILINE)
    model, seeds, perplexity, _, paper, verdict, *_, parameters, papers = [cell.strip() for cell in row.split("|")]
    assert (model, seeds, paper, papers) == ("1, 64, 256, 8, 8, 8", "2", "1.242", "36")
    assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", perplexity)
    assert verdict in (table3.AGREES, table3.DISAGREES, table3.UNKNOWN)
    assert 0.1 < float(parameters) < 0.2
    shutil.copy(recipe / "work/seed-1/c_n2.json", recipe / "work/seed-1/c_n4.json")  # a row that was not requested
    assert make(*asked).stdout.endswith(report)
    result = Result.read(recipe / "work/seed-2/c_n2.json")
    assert (result.seed, result.updates) == (2, 3)
    assert "nmt-train WORK/data-bin --save-dir WORK/seed-2/c_n2/checkpoints" in result.command
    assert result.machine.keys() >= {"date", "processor"}
    for seed in ("seed-1", "seed-2"):  # results remain when the models are gone
        for row in ("base", "c_n2"):
            shutil.rmtree(recipe / "work" / seed / row)
    command = [sys.executable, "table3.py", "base c_n2", "work/seed-1", "work/seed-2"]
    environment = {**os.environ, "PYTHONPATH": ".."}
    again = subprocess.run(command, cwd=recipe, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout == report
