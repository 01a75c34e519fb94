"""The moving average of the weights in a run: its recurrence, and that training goes on without it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Train
from torch import Tensor

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.training.config import BatchConfig, TrainingOptions
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.validation import Validator


def load(folder: Path, name: str = "checkpoint_last.pt") -> Checkpoint:
    checkpoint = load_checkpoint(folder / name)
    assert checkpoint.ema is not None
    return checkpoint


def test_a_run_averages_its_weights_without_changing_the_training(train: Train, tmp_path: Path) -> None:
    each = ("--max-updates", 6, "--save-every", 1, "--validate-every", 2)
    train(tmp_path / "ema", *each, "--ema", 0.3)
    train(tmp_path / "plain", *each)
    first = load(tmp_path / "ema", "checkpoint_1.pt")
    assert first.ema is not None
    expected = {name: tensor.astype(np.float64) for name, tensor in first.ema.items()}
    for update in range(1, 7):
        checkpoint = load(tmp_path / "ema", f"checkpoint_{update}.pt")
        assert checkpoint.ema is not None
        decay = min(0.3, (1 + update) / (10 + update))
        for name, weight in checkpoint.weights.items():
            assert np.array_equal(weight, load_checkpoint(tmp_path / "plain" / f"checkpoint_{update}.pt").weights[name])
            if update > 1:
                expected[name] = decay * expected[name] + (1 - decay) * weight.astype(np.float64)
            np.testing.assert_allclose(checkpoint.ema[name].astype(np.float64), expected[name], rtol=1e-5, atol=1e-6)
    assert load_checkpoint(tmp_path / "plain" / "checkpoint_last.pt").ema is None


def test_validation_measures_the_averaged_weights(train: Train, tmp_path: Path, datasets: dict[str, Path]) -> None:
    train(tmp_path, "--max-updates", 8, "--validate-every", 8, "--ema", 0.9, "--lr-scale", 5)
    checkpoint = load(tmp_path)
    validator = Validator(Dataset.open(datasets["joined"]), TrainingOptions(batches=BatchConfig(max_tokens=2000)))
    losses = {}
    for which in ("ema", "trained"):
        results = validator.run(MicroBatchLoss(checkpoint.build_model(which), 0.1), Ranks(torch.device("cpu")))
        assert results is not None
        losses[which] = results.values["valid_loss"]
    assert checkpoint.progress["valid_loss"] == pytest.approx(losses["ema"], rel=1e-6)
    assert losses["ema"] != pytest.approx(losses["trained"], rel=1e-3)


def test_a_resumed_run_continues_its_averages_bit_for_bit(train: Train, tmp_path: Path) -> None:
    for folder, ends in (("straight", (9,)), ("stopped", (4, 9))):
        for end in ends:
            train(tmp_path / folder, "--max-updates", end, "--ema", 0.9)
    ours, theirs = load(tmp_path / "stopped"), load(tmp_path / "straight")
    assert ours.ema is not None
    assert theirs.ema is not None
    assert ours.ema.keys() == ours.weights.keys()
    for name, tensor in ours.ema.items():
        assert np.array_equal(tensor, theirs.ema[name])
        assert np.array_equal(ours.weights[name], theirs.weights[name])


def test_averaging_can_be_enabled_and_disabled_on_resume(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 3)
    before = load_checkpoint(tmp_path / "checkpoint_3.pt").weights
    train(tmp_path, "--max-updates", 4, "--ema", 0.9)
    checkpoint = load(tmp_path)
    assert checkpoint.ema is not None
    decay = 5 / 14
    for name, average in checkpoint.ema.items():
        expected = decay * before[name] + (1 - decay) * checkpoint.weights[name]
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)
    train(tmp_path, "--max-updates", 5)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").ema is None


def test_a_skipped_update_does_not_change_the_average(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = UpdateGradient.compute

    def compute(self: UpdateGradient, update: int, *arguments: Any) -> tuple[Tensor, list[float]]:
        totals = original(self, update, *arguments)
        if update == 2:
            gradient = next(self.loss.parameters()).grad
            assert gradient is not None
            gradient.fill_(torch.inf)
        return totals

    monkeypatch.setattr(UpdateGradient, "compute", compute)
    train(tmp_path, "--max-updates", 2, "--save-every", 1, "--ema", 0.9)
    first, second = load(tmp_path, "checkpoint_1.pt"), load(tmp_path, "checkpoint_2.pt")
    assert first.ema is not None
    assert second.ema is not None
    assert all(np.array_equal(tensor, second.ema[name]) for name, tensor in first.ema.items())
