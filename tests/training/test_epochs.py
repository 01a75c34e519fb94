"""Validation and checkpoints at the end of epochs."""

from itertools import pairwise
from pathlib import Path

import pytest
from commands import Train
from training_runs import DROPOUT, OPTIONS, TRAIN, assert_same_end, finish, metrics, refused, start, updates

from nmtkit.checkpoint import load_checkpoint
from nmtkit.errors import UserError
from nmtkit.training.averaging import last_checkpoints

EPOCHS = ("--validate-epochs", 1, "--save-epochs", 1, "--save-minutes", 0)


def ends_of_epochs(folder: Path) -> list[int]:
    """The last update of each complete epoch of a run that logs every update."""
    epochs = [row["epoch"] for row in metrics(folder, "train")]
    return [number for number, (now, following) in enumerate(pairwise(epochs), 1) if now != following]


def validated(folder: Path) -> list[int]:
    return [row["update"] for row in metrics(folder, "valid")]


@pytest.fixture
def straight(train: Train, tmp_path: Path) -> Path:
    """A run of 24 updates, within its last epoch, that validates and saves at the end of each epoch."""
    train(tmp_path / "straight", "--max-updates", 24, *EPOCHS, *DROPOUT)
    return tmp_path / "straight"


def test_each_epoch_ends_with_a_validation_and_a_checkpoint(straight: Path) -> None:
    ends = ends_of_epochs(straight)
    assert len(ends) >= 3
    assert validated(straight) == updates(straight) == [*ends, 24]


def test_every_second_epoch_can_be_chosen_beside_a_number_of_updates(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 24, "--validate-epochs", 2, "--validate-every", 10, "--save-epochs", 2)
    ends = ends_of_epochs(tmp_path)
    assert validated(tmp_path) == sorted({*ends[1::2], 10, 20, 24})


def test_a_run_stopped_within_epochs_ends_as_the_straight_one(train: Train, straight: Path, tmp_path: Path) -> None:
    end = ends_of_epochs(straight)[1]
    for update in (end - 2, end, 24):
        train(tmp_path / "run", "--max-updates", update, *EPOCHS, *DROPOUT)
    assert [row for row in validated(tmp_path / "run") if row != end - 2] == validated(straight)
    assert updates(tmp_path / "run") == updates(straight)
    for name in straight.glob("checkpoint_[0-9]*.pt"):
        ours, theirs = (load_checkpoint(folder / name.name).weights for folder in (straight, tmp_path / "run"))
        assert all(bool((ours[key] == theirs[key]).all()) for key in ours)


def test_a_run_killed_between_the_end_of_an_epoch_and_its_validation_validates_on_resuming(
    train: Train, straight: Path, tmp_path: Path
) -> None:
    run, (end, *_) = tmp_path / "run", ends_of_epochs(straight)
    train(run, "--max-updates", end + 1, "--save-epochs", 1, *DROPOUT)  # validates at its last update only
    for name in (end + 1, "last"):
        (run / f"checkpoint_{name}.pt").unlink()
    assert updates(run) == [end]
    assert not load_checkpoint(run / f"checkpoint_{end}.pt").progress["validation"]
    train(run, "--max-updates", 24, *EPOCHS, *DROPOUT)
    assert validated(run) == validated(straight)
    assert_same_end(run, straight)


def test_patience_counts_epochs_with_one_validation_an_epoch(train: Train, tmp_path: Path) -> None:
    said = train(tmp_path, "--max-updates", 400, *EPOCHS, "--patience", 2, "--lr-scale", 30).stderr.decode()
    losses = [row["valid_loss"] for row in metrics(tmp_path, "valid")]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert "--patience 2" in said
    assert len(losses) == best + 3
    assert validated(tmp_path)[:-1] == ends_of_epochs(tmp_path)


def test_other_checkpoints_neither_displace_those_of_epochs_nor_are_averaged(
    train: Train, straight: Path, tmp_path: Path
) -> None:
    run, ends = tmp_path / "run", ends_of_epochs(straight)
    options = (*EPOCHS[2:4], "--validate-every", 1000, "--keep-last", 2, "--keep-best", 0)
    for update in (ends[0] + 1, ends[1] + 1, ends[2] + 1, ends[2] + 2):  # each stop saves within an epoch
        train(run, "--max-updates", update, *options)
    assert updates(run) == [ends[1], ends[2], ends[2] + 2]
    assert last_checkpoints(run, 2) == [run / f"checkpoint_{end}.pt" for end in ends[1:3]]
    with pytest.raises(UserError, match="only 2 checkpoints that --keep-last counts: use --last 2"):
        last_checkpoints(run, 3)


@pytest.mark.parametrize("option", ["--validate-epochs", "--save-epochs"])
def test_an_epoch_that_is_never_reached_is_refused(option: str, train: Train, tmp_path: Path) -> None:
    refused(train(tmp_path, option, 3, "--max-epochs", 2, code=2), option, "--max-epochs 2")


@pytest.mark.slow
def test_epochs_end_at_the_same_updates_on_two_ranks(datasets: dict[str, Path], tmp_path: Path) -> None:
    for ranks in (1, 2):
        options = (*OPTIONS[:-2], *EPOCHS, "--max-epochs", 3)
        finish(start(ranks, TRAIN, datasets["joined"], "--save-dir", tmp_path / str(ranks), *options))
    assert validated(tmp_path / "2") == updates(tmp_path / "2") == updates(tmp_path / "1")
    assert len(updates(tmp_path / "2")) == 3
