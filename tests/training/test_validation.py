"""Validation: errors of one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from nmtkit.data.corpus import Dataset
from nmtkit.errors import NmtkitError, RunError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training import validation
from nmtkit.training.config import BatchConfig, TrainingOptions, ValidationConfig
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.validation import Validator

T = TypeVar("T")


OPTIONS = TrainingOptions(batches=BatchConfig(max_tokens=2000), validation=ValidationConfig(valid_bleu=True))


def test_lack_of_memory_on_one_rank_stops_all_ranks(datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Ranks):
        """Keeps what one rank tells the others that it has met."""

        met: NmtkitError | None = None

        def run_on_all(self, function: Callable[[], T]) -> T:
            try:
                return function()
            except NmtkitError as error:
                self.met = error
                raise

    def fail(*_: object, **__: object) -> None:
        raise RunError("out of memory for one sentence")

    monkeypatch.setattr(validation, "Translator", fail)
    dataset, ranks = Dataset.open(datasets["joined"]), Asked(torch.device("cpu"))
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    model = Transformer(config, len(dataset.source.vocab), len(dataset.target.vocab))
    with pytest.raises(RunError, match="out of memory for one"):
        Validator(dataset, OPTIONS).run(MicroBatchLoss(model, 0.1), ranks)
    assert ranks.met is not None
