"""Validation: what it does where the memory is short."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.corpus import Dataset
from nmtkit.errors import NmtkitError, RunError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import EOS, UNK
from nmtkit.training import validation
from nmtkit.training.config import BatchConfig, TrainingOptions, ValidationConfig
from nmtkit.training.loss import batch_loss
from nmtkit.training.ranks import Ranks
from nmtkit.training.validation import Validator

T = TypeVar("T")


def small_model(dataset: Dataset) -> Transformer:
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    return Transformer(config, len(dataset.source.vocab), len(dataset.target.vocab))


def test_a_validation_batch_too_large_for_the_memory_is_halved(
    datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.open(datasets["joined"])
    model = small_model(dataset)
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


@pytest.mark.parametrize("failing", ["batch_loss", "Translator"])
def test_lack_of_memory_on_one_rank_stops_all_ranks(
    failing: str, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Ranks):
        """Keeps what one rank tells the others that it has met."""

        met: NmtkitError | None = None

        def run_on_all(self, function: Callable[[], T]) -> T:
            try:
                return function()
            except NmtkitError as error:
                self.met = error
                raise

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError if failing == "batch_loss" else RunError("out of memory for one sentence")

    monkeypatch.setattr(validation, failing, fail)
    dataset, ranks = Dataset.open(datasets["joined"]), Asked(torch.device("cpu"))
    validator = Validator(dataset, TrainingOptions(validation=ValidationConfig(valid_bleu=True)))
    with pytest.raises(RunError, match="out of memory for one"):
        validator.run(small_model(dataset), ranks)
    assert ranks.met is not None


def test_an_unknown_piece_of_a_reference_matches_no_unknown_piece_of_a_translation(
    datasets: dict[str, Path],
) -> None:
    dataset = Dataset.open(datasets["joined"])
    validator = Validator(dataset, TrainingOptions(validation=ValidationConfig(valid_bleu=True)))
    pairs, unknown = len(validator.split), torch.tensor([UNK, 7, UNK, 8, UNK, EOS])
    validator.split = replace(validator.split, target=[unknown] * pairs)  # type: ignore[arg-type]
    score, samples = validator._score([dataset.target.decode([UNK] * 5)] * pairs)
    assert score == 0
    assert samples[0].reference.count("⁇") == 3
