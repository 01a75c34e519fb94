"""Training assumes nothing of a Transformer: the toy architecture trains, validates, saves and resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyConfig
from training_runs import assert_same_end, last, metrics

from nmtkit.errors import UserError
from nmtkit.model.architectures import ARCHITECTURES, Architecture
from nmtkit.model.config import DeviceConfig
from nmtkit.training.config import (
    BatchConfig,
    CheckpointConfig,
    OptimizerConfig,
    StopConfig,
    TrainingOptions,
    ValidationConfig,
)
from nmtkit.training.trainer import train


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "toy", Architecture(ToyConfig, "toy_model:Toy"))


def toy_options(folder: Path, updates: int) -> TrainingOptions:
    return TrainingOptions(
        model=ToyConfig(),
        batches=BatchConfig(batch_tokens=400, max_tokens=200),
        optimizer=OptimizerConfig(warmup_updates=5, ema=0.9),
        stop=StopConfig(max_updates=updates),
        validation=ValidationConfig(validate_every=10),
        checkpoints=CheckpointConfig(save_dir=folder, log_every=1),
        device=DeviceConfig(device="cpu", precision="fp32", threads=1),
    )


def test_a_toy_model_learns_and_a_resumed_run_ends_like_an_uninterrupted_one(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(datasets["joined"], toy_options(tmp_path / "straight", 20))
    for updates in (10, 20):
        train(datasets["joined"], toy_options(tmp_path / "resumed", updates))
    assert_same_end(tmp_path / "straight", tmp_path / "resumed")
    first, second = metrics(tmp_path / "straight", "valid")
    assert second["valid_loss"] < first["valid_loss"]
    assert last(tmp_path / "straight").model_config == ToyConfig()


def test_a_function_gets_each_row_of_the_metrics(datasets: dict[str, Path], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    train(datasets["joined"], toy_options(tmp_path, 10), on_metrics=rows.append)
    assert len(rows) == 11
    for event in ("train", "valid"):
        assert [row for row in rows if row["event"] == event] == metrics(tmp_path, event)


def test_sentences_longer_than_the_architecture_supports_are_refused(datasets: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--toy-length .*use a real model"):
        train(datasets["joined"], replace(toy_options(tmp_path, 1), model=ToyConfig(length=20)))


def test_validation_bleu_with_an_architecture_without_search_is_refused(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    options = toy_options(tmp_path, 10)
    with pytest.raises(UserError, match="architecture toy"):
        train(datasets["joined"], replace(options, validation=ValidationConfig(validate_every=10, valid_bleu=True)))
