"""Runs with --lora-rank: what they train and save, that they resume exactly, and their averages."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import Run, Train
from training_runs import OPTIONS, TRAIN, assert_near, finish, refused, start, tensors

from nmtkit.checkpoint import load_checkpoint

LORA = ("--lora-rank", 2, "--lr-scale", 5)


@pytest.fixture
def parent(train: Train, tmp_path: Path) -> Path:
    """The last checkpoint of a run of six updates."""
    train(tmp_path / "parent", "--max-updates", 6)
    return tmp_path / "parent" / "checkpoint_last.pt"


def test_only_the_additions_change_and_have_optimizer_state(train: Train, parent: Path, tmp_path: Path) -> None:
    said = train(tmp_path / "run", "--max-updates", 3, "--init-from", parent, *LORA).stderr.decode()
    assert "of them are trained" in said
    base = load_checkpoint(parent).weights
    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt", merge=False)
    assert checkpoint.optimizer is not None
    added = checkpoint.weights.keys() - base.keys()
    assert {name.partition(".")[2] for name in checkpoint.optimizer} == added
    assert all(".lora_" in name for name in added)
    assert all(np.array_equal(checkpoint.weights[name], weight) for name, weight in base.items())
    merged = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt").weights
    changed = {name for name, weight in base.items() if not np.array_equal(weight, merged[name])}
    assert changed == {
        name for name in base if "_attention." in name and name.endswith("weight") and "norm" not in name
    }


@pytest.mark.parametrize("averaged", [(), ("--ema", 0.9)])
def test_a_resumed_run_ends_with_the_bits_of_a_straight_one(
    averaged: tuple[object, ...], train: Train, parent: Path, tmp_path: Path
) -> None:
    for folder, ends in (("straight", (6,)), ("stopped", (3, 6))):
        for end in ends:
            train(tmp_path / folder, "--max-updates", end, "--init-from", parent, *LORA, *averaged)
    ours, theirs = tensors(tmp_path / "stopped"), tensors(tmp_path / "straight")
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("optimizer.") and ".lora_a." in name for name in ours)
    assert all(np.array_equal(tensor, theirs[name]) for name, tensor in ours.items())
    path, other = (tmp_path / folder / "checkpoint_last.pt" for folder in ("stopped", "straight"))
    ema, other_ema = load_checkpoint(path, merge=False).ema or {}, load_checkpoint(other, merge=False).ema or {}
    assert bool(ema) == bool(averaged)
    assert all(np.array_equal(tensor, other_ema[name]) for name, tensor in ema.items())


def test_an_average_is_that_of_the_merged_weights(train: Train, parent: Path, tmp_path: Path, run_here: Run) -> None:
    train(tmp_path / "run", "--max-updates", 4, "--save-every", 2, "--init-from", parent, *LORA)
    done = run_here("nmt-average", tmp_path / "run", "--last", 2, "--output", tmp_path / "mean.pt")
    assert done.returncode == 0, done.stderr.decode()
    mean = load_checkpoint(tmp_path / "mean.pt", merge=False)
    assert mean.lora is None
    two, four = (load_checkpoint(tmp_path / "run" / f"checkpoint_{update}.pt").weights for update in (2, 4))
    for name, weight in mean.weights.items():
        assert np.array_equal(weight, ((two[name].astype(np.float64) + four[name]) / 2).astype(np.float32)), name


def test_an_adapted_model_can_be_adapted_again(train: Train, parent: Path, tmp_path: Path) -> None:
    train(tmp_path / "a", "--max-updates", 2, "--init-from", parent, *LORA)
    first, second = (tmp_path / name / "checkpoint_last.pt" for name in "ab")
    train(tmp_path / "b", "--max-updates", 2, "--init-from", first, "--lora-rank", 3)
    adapted = load_checkpoint(second, merge=False).weights
    assert all(np.array_equal(adapted[name], weight) for name, weight in load_checkpoint(first).weights.items())


@pytest.mark.parametrize(
    ("options", "before", "now"),
    [((), "--lora-rank 2", "not no --lora-rank"), (("--lora-rank", 3), "--lora-rank 2", "not --lora-rank 3")],
)
def test_a_run_does_not_resume_with_other_additions(
    options: tuple[object, ...], before: str, now: str, train: Train, parent: Path, tmp_path: Path
) -> None:
    train(tmp_path / "run", "--max-updates", 1, "--init-from", parent, *LORA)
    result = train(tmp_path / "run", "--max-updates", 2, "--init-from", parent, *options, code=2)
    refused(result, f"{tmp_path / 'run'} contains checkpoints of a run with ", before, now)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lora-rank", 2), "--lora-rank adapts the weights of a model: give --init-from"),
        (("--lora-alpha", 2), "--lora-alpha can be set only in a --config file"),
    ],
)
def test_options_without_effect_are_refused(
    options: tuple[object, ...], message: str, train: Train, tmp_path: Path
) -> None:
    refused(train(tmp_path, "--max-updates", 1, *options, code=2), message)


def test_the_options_of_a_run_start_another(train: Train, parent: Path, tmp_path: Path) -> None:
    (tmp_path / "lora.json").write_text('{"lora_targets": ["*attention*", "*inner*"], "lora_train": "*norm*"}')
    config = ("--config", tmp_path / "lora.json")
    train(tmp_path / "a", "--max-updates", 1, "--init-from", parent, *LORA, *config)
    options = tmp_path / "a" / "options.json"
    assert json.loads(options.read_text())["lora"]["lora_targets"] == ["*attention*", "*inner*"]
    train(tmp_path / "b", "--config", options, "--save-dir", tmp_path / "b", "--init-from", parent)
    names = [load_checkpoint(tmp_path / name / "checkpoint_last.pt", merge=False).weights.keys() for name in "ab"]
    assert names[0] == names[1]


@pytest.mark.slow
def test_two_ranks_train_the_same_additions_as_one(
    train: Train, parent: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    options = (*OPTIONS, "--init-from", parent, "--lora-rank", 2, "--max-updates", 20)
    for ranks in (1, 2):
        finish(start(ranks, TRAIN, datasets["joined"], "--save-dir", tmp_path / str(ranks), *options))
    assert_near(tmp_path / "2", tmp_path / "1")
