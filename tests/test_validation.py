"""Validation: what it does where the memory is short."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.corpus import Dataset
from nmtkit.errors import RunError
from nmtkit.model.config import ModelConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training import validation
from nmtkit.training.config import BatchConfig, TrainingOptions
from nmtkit.training.loss import batch_loss
from nmtkit.training.ranks import Ranks
from nmtkit.training.validation import Validator


def test_a_batch_too_large_for_the_memory_is_measured_in_halves(
    datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.open(datasets["joined"])
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    model = Transformer(config, len(dataset.source.vocab), len(dataset.target.vocab))
    validator = Validator(dataset, TrainingOptions(batches=BatchConfig(max_tokens=2000)))
    ranks = Ranks(torch.device("cpu"))
    expected = validator.run(model, ranks)
    sizes: list[int] = []

    def limited(model: Transformer, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
        sizes.append(len(batch.src))
        if len(batch.src) > most:
            raise torch.OutOfMemoryError
        return batch_loss(model, batch, smoothing)

    monkeypatch.setattr(validation, "batch_loss", limited)
    most = 3
    measured = validator.run(model, ranks)
    assert max(sizes) > most
    assert expected is not None
    assert measured is not None
    assert measured.values == pytest.approx(expected.values)
    most = 0
    with pytest.raises(RunError, match="out of memory for one pair of split 'valid'"):
        validator.run(model, ranks)
