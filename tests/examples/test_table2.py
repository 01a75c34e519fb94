"""The Table 2 recipe: the sizes of its models, the steps that make repeats, and the comparison at equal cost."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runs
import table2
from recipe_commands import REAL, STUBS, Make, called, make_with, parsed
from repository import ROOT
from runs import Run, Validation

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.model.flops import training_flops
from nmtkit.storage.run_files import LAST

MODELS = ("transformer", "recurrent", "convolutional")
W = 6000


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The folder of a copy of the recipe, with small texts in `text`."""
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "table2"
    (folder / "text").mkdir()
    for split, count in (("train", 60), ("val", 6), ("dev", 6), ("test", 6), ("test_2016_flickr", 6)):
        for language in ("en", "de", "ja"):
            lines = [f"{language} {i % 7} a {'b c' * (i % 5)} {i % 3}\n" for i in range(count)]
            (folder / "text" / f"{split}.{language}").write_text("".join(lines))
    return folder


TEXT = ("MULTI30K_DIR=text", "TANAKA_DIR=text", "ENDING=")


@pytest.fixture
def make(recipe: Path, tmp_path: Path) -> Make:
    return make_with(tmp_path / "bin", recipe, STUBS, *TEXT)


# --- the models


def model_config(make: Make, name: str) -> ModelConfig:
    """The options of a model of the recipe, as nmt-train would parse them."""
    done = make("--eval", "print: ; @echo $(TRAINING)", "CORPUS=multi30k", f"MODEL={name}", "SEED=1", "print")
    config = parsed(*done.stdout.split())["model"]
    assert isinstance(config, ModelConfig)
    return config


@pytest.mark.parametrize("joined", [True, False])
def test_the_models_have_equal_parameters_and_cost_within_5_percent(joined: bool, make: Make) -> None:
    lengths = np.full(100, 14)
    sizes, costs = [], []
    for name in MODELS:
        config = model_config(make, name).for_vocabularies(joined)
        sizes.append(sum(weights.numel() for weights in make_model(config, W, W).parameters()))
        costs.append(training_flops(config, W, lengths, lengths))
    assert max(sizes) < 1.05 * min(sizes)
    assert max(costs) < 1.05 * min(costs)


# --- make


def folders(corpus: str, *runs: str) -> list[str]:
    return [f"work/{corpus}/{run}/checkpoints" for run in runs]


def test_each_model_is_trained_on_each_corpus_with_each_seed_and_only_once(make: Make) -> None:
    runs = [f"{model}/seed-{seed}" for model in MODELS for seed in (1, 2)]
    first = called(make("trainings", "SEEDS=1 2"))
    datasets = ["work/multi30k/data-bin", "work/tanaka/data-bin"]
    assert sorted(first) == sorted([*datasets, *folders("multi30k", *runs), *folders("tanaka", *runs)])
    assert called(make("trainings", "SEEDS=1 2")) == []
    further = [f"{model}/seed-3" for model in MODELS]
    assert called(make("trainings", "CORPORA=tanaka")) == folders("tanaka", *further)


def test_an_interrupted_training_is_resumed_and_finished_ones_are_not_repeated(make: Make, recipe: Path) -> None:
    asked = ("trainings", "CORPORA=multi30k", "MODELS=transformer recurrent")
    make(*asked, "SEEDS=1")
    (recipe / "stop").touch()
    assert called(make(*asked, "SEEDS=1 2")) == folders("multi30k", "transformer/seed-2")
    (recipe / "stop").unlink()
    (recipe / folders("multi30k", "transformer/seed-2")[0] / "before").touch()
    resumed = called(make(*asked, "SEEDS=1 2"))
    assert resumed == folders("multi30k", "transformer/seed-2", "recurrent/seed-2")
    assert (recipe / resumed[0] / "before").exists()


def test_the_work_folder_and_the_threads_are_variables(make: Make, recipe: Path) -> None:
    asked = ("trainings", "WORK=elsewhere", "CORPORA=tanaka", "MODELS=recurrent", "SEEDS=4")
    done = make(*asked, "ON_DEVICE=--threads 7")
    assert called(done) == ["elsewhere/tanaka/data-bin", "elsewhere/tanaka/recurrent/seed-4/checkpoints"]
    assert "--threads 7" in done.stdout
    assert called(make(*asked, "ON_DEVICE=--threads 1")) == []


@pytest.mark.parametrize(("variable", "said"), [("CORPORA=wmt", "no corpus wmt"), ("MODELS=gru", "no model gru")])
def test_an_unknown_corpus_or_model_is_refused(variable: str, said: str, make: Make) -> None:
    done = make("trainings", variable)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_corpus_that_is_missing_is_refused_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    done = make_with(tmp_path / "bin", recipe, STUBS, "MULTI30K_DIR=text", "ENDING=")("trainings")
    assert (done.returncode, called(done)) == (2, [])
    assert "set TANAKA_DIR to the folder of the corpus" in done.stderr


# --- the comparison


def run(model: str, validations: Sequence[tuple[float, float, float, float]], bleu: float = 1.0) -> Run:
    """A run with these validations: cost in 10¹² operations, minutes, perplexity, BLEU."""
    points = [Validation(update, *values) for update, values in enumerate(validations, start=1)]
    return Run("multi30k", model, 5_000_000, bleu, points)


SLOW = run("recurrent", [(1, 2, 90, 0), (3, 6, 30, 10)], 11)
FAST = run("transformer", [(1, 1, 80, 4), (4, 4, 20, 16)], 20)
OTHER = run("transformer", [(1, 1, 60, 6), (4, 4, 20, 18)], 22)


def test_a_training_that_diverged_is_named(tmp_path: Path) -> None:
    lines = [
        {"event": "train", "update": 2, "tflop": 1.0, "processor_minutes": 1.0},
        {"event": "valid", "update": 2, "valid_ppl": None, "valid_bleu": 0.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="diverged, since its perplexity after update 2 is not finite"):
        runs._validations(tmp_path)


def test_a_curve_is_linear_between_validations_and_unknown_outside() -> None:
    assert SLOW.at("tflop", 2, "perplexity") == pytest.approx(60)
    assert SLOW.at("minutes", 3, "bleu") == pytest.approx(2.5)
    assert SLOW.at("tflop", 3, "bleu") == 10
    assert SLOW.at("tflop", 0.5, "bleu") is None
    assert SLOW.at("tflop", 3.5, "bleu") is None


def test_equal_cost_ends_with_the_cheapest_run_and_has_the_spread_over_seeds() -> None:
    ((_, groups),) = table2.grouped([FAST, OTHER, SLOW]).items()
    table = table2.at_equal_cost(groups, "tflop")
    assert table.header[1:] == [
        *("transformer, BLEU", "recurrent, BLEU", "transformer, perplexity", "recurrent, perplexity"),
    ]
    assert table.rows[-1] == ["3", "13.00 ± 1.41", "10.00", "36.67 ± 4.71", "30.00"]
    assert table.rows[0] == ["0.75", "", "", "", ""]  # before the first validation


def test_the_paper_stands_beside_the_means_over_seeds_and_missing_runs_are_blank() -> None:
    table = table2.beside_the_paper(table2.grouped([FAST, OTHER, SLOW]))
    transformer, recurrent, convolutional = table.rows
    assert transformer == ["transformer", "Transformer (base)", "27.3", "3.3e18", "38.1", "", "21.00 ± 1.41", "4e12"]
    assert recurrent[-2:] == ["11.00", "3e12"]
    assert convolutional == ["convolutional", "ConvS2S", "25.16", "9.6e18", "40.46", "1.5e20", "", ""]


def test_curves_have_a_line_and_a_band_for_each_model() -> None:
    ((_, groups),) = table2.grouped([FAST, OTHER, SLOW]).items()
    (bleu, *_), (perplexity, *_) = np.array(table2.plot(groups).axes).reshape(2, 2).tolist()
    transformer, recurrent = bleu.lines
    assert transformer.get_xydata().tolist() == [[1, 5], [4, 17]]
    assert recurrent.get_xydata().tolist() == [[1, 0], [3, 10]]
    band = {tuple(point) for point in bleu.collections[0].get_paths()[0].vertices.tolist()}
    assert band == {(1, 4), (1, 6), (4, 16), (4, 18)}
    assert perplexity.lines[0].get_xydata().tolist() == [[1, 70], [4, 20]]


def events(folder: Path, log_every: int) -> None:
    rows = [
        {"event": "train", "update": n, "tflop": 0.5 * n, "processor_minutes": n}
        for n in range(log_every, 5, log_every)
    ]
    rows += [{"event": "valid", "update": n, "valid_ppl": 9.0, "valid_bleu": 3.0 * n} for n in (2, 4)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def finished(make_checkpoint: Callable[..., Checkpoint], tmp_path: Path) -> Path:
    """The folder of a finished run."""
    folder = tmp_path / "tanaka/recurrent/seed-3"
    events(folder / "checkpoints", log_every=1)
    save_checkpoint(folder / "averaged.pt", make_checkpoint(1))
    save_checkpoint(folder / "checkpoints" / LAST, replace(make_checkpoint(1), progress={"update": 4}))
    (folder / "scores.txt").write_text("BLEU|nrefs:1|tok:char = 33.60 64.8/44.3\nchrF2|nrefs:1 = 29.02\n")
    return folder


def test_a_run_is_read_from_its_folder(finished: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    parameters = sum(weights.numel() for weights in make_checkpoint(1).weights.values())
    validations = [Validation(2, 1.0, 2.0, 9.0, 6.0), Validation(4, 2.0, 4.0, 9.0, 12.0)]
    assert Run.read(finished) == Run("tanaka", "recurrent", parameters, 33.6, validations)


def test_a_run_that_lost_lines_of_its_metrics_is_refused(finished: Path) -> None:
    """It would count as a shorter training."""
    path = finished / "checkpoints/metrics.jsonl"
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    with pytest.raises(UserError, match="ends with a validation after update 2, the training after update 4"):
        Run.read(finished)


def test_an_unfinished_run_and_one_without_costs_are_refused(finished: Path) -> None:
    events(finished / "checkpoints", log_every=4)
    with pytest.raises(UserError, match="no cost at each validation"):
        Run.read(finished)
    (finished / "scores.txt").unlink()
    with pytest.raises(UserError, match=r"scores\.txt has no BLEU"):
        Run.read(finished)


@pytest.mark.slow
def test_a_model_is_trained_scored_and_reported(recipe: Path, tmp_path: Path) -> None:
    make = make_with(tmp_path / "real", recipe, REAL, *TEXT)
    asked = ("CORPORA=tanaka", "MODELS=recurrent convolutional", "SEEDS=1", "VOCAB_SIZE=40", "UPDATES=4")
    done = make(*asked, "WARMUP=200", "VALIDATE_EVERY=2", "PREPROCESS=--vocab-size 30 --joined-vocab")
    assert done.returncode == 0, done.stderr
    report = (recipe / "work/report.md").read_text(encoding="utf-8")
    assert report in done.stdout
    assert len(re.findall(r"^\| (?:recurrent|convolutional) \| \d\.\d\d \| 1 \| 4 \|", report, re.MULTILINE)) == 2
    page = (recipe / "work/report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == []
