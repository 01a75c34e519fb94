"""Resuming from checkpoints whose training state is incomplete, or of another version of data order and schedule."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Train

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.data.batching import ORDER_VERSION
from nmtkit.training.loss import LOSS_VERSION
from nmtkit.training.optim import SCHEDULE_VERSION

STOPPED = ("--max-updates", 4, "--validate-every", 3, "--log-every", 3)  # in the first epoch, within a window
RESUMED = ("--max-updates", 6, "--validate-every", 3, "--log-every", 3)


@pytest.fixture
def stopped(train: Train, tmp_path: Path) -> Path:
    """The save folder of a run that was stopped within an epoch and between two log lines."""
    train(tmp_path / "run", *STOPPED)
    return tmp_path / "run"


def rewrite(folder: Path, change: Callable[[Checkpoint], object], update: int = 4) -> None:
    """Change a checkpoint; its checksum is right."""
    checkpoint = load_checkpoint(folder / f"checkpoint_{update}.pt")
    change(checkpoint)
    save_checkpoint(folder / f"checkpoint_{update}.pt", checkpoint)


def test_a_checkpoint_whose_optimizer_state_does_not_fit_is_skipped(train: Train, stopped: Path) -> None:
    name = "exp_avg_sq.encoder.0.feed_forward.inner.bias"
    rewrite(stopped, lambda checkpoint: (checkpoint.optimizer or {}).update({name: np.zeros(23, np.float32)}))
    said = train(stopped, *RESUMED).stderr.decode()
    assert re.search(rf"checkpoint_4\.pt: the optimizer.*{re.escape(name)}; trying", said)


@pytest.mark.parametrize(("versions", "words"), [({}, "version 1"), ({"data_order_version": 99}, "version 99")])
def test_resuming_with_another_data_order_warns(
    versions: dict[str, int], words: str, train: Train, stopped: Path
) -> None:
    def change(checkpoint: Checkpoint) -> None:
        assert checkpoint.progress.pop("data_order_version") == ORDER_VERSION
        checkpoint.progress |= versions

    rewrite(stopped, change)
    (line,) = warnings(train(stopped, *RESUMED))
    assert f"the checkpoint has {words} of the data order, nmtkit now has {ORDER_VERSION}" in line
    assert "the rest of the epoch may repeat or omit some pairs" in line
    assert warnings(train(stopped, *RESUMED)) == []  # the checkpoints are of this version now


def test_resuming_with_another_version_of_the_loss_warns_once(train: Train, stopped: Path) -> None:
    rewrite(stopped, partial(forget, name="loss_version"))
    discarded, version = warnings(train(stopped, *RESUMED))
    assert "the version of the loss has changed: the previous best result is discarded" in discarded
    assert f"the checkpoint has version 1 of the loss, nmtkit now has {LOSS_VERSION}" in version
    assert warnings(train(stopped, *RESUMED)) == []


def test_values_of_another_label_smoothing_do_not_count_for_the_best_checkpoint(train: Train, stopped: Path) -> None:
    before = load_checkpoint(stopped / "checkpoint_last.pt").progress
    assert before["best_metric"] == "valid_loss"
    said = train(stopped, *RESUMED, "--label-smoothing", 0.6).stderr.decode()
    assert "--label-smoothing has changed: the previous best result is discarded" in said
    after = load_checkpoint(stopped / "checkpoint_last.pt").progress
    assert after["best"] > before["best"]  # more smoothing, more loss
    assert min(update for update, _ in after["checkpoint_validations"]) > before["update"]


def warnings(result: Any) -> list[str]:
    return [line for line in result.stderr.decode().splitlines() if "warning: " in line and "warmup" not in line]


def forget(checkpoint: Checkpoint, name: str) -> None:
    del checkpoint.progress[name]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "paper", "constant"])
def test_resuming_with_another_version_of_a_falling_schedule_warns(schedule: str, train: Train, tmp_path: Path) -> None:
    train(tmp_path, *STOPPED, "--lr-schedule", schedule)
    rewrite(tmp_path, lambda checkpoint: checkpoint.progress.pop("schedule_version"))
    lines = [line for line in warnings(train(tmp_path, *RESUMED, "--lr-schedule", schedule)) if "version" in line]
    expected = f"the checkpoint has version 1 of --lr-schedule {schedule}, nmtkit now has {SCHEDULE_VERSION}"
    assert [expected in line for line in lines] == [True] * (schedule in ("linear", "cosine"))
