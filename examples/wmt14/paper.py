"""The paper's base and big models: training cost and BLEU."""

from dataclasses import dataclass

import numpy as np

from nmtkit.model.config import ModelConfig
from nmtkit.training.cost import rates_of, training_flops

GPUS, GPU = 8, "P100"
VOCABULARY = {"en-de": 37_000, "en-fr": 32_000}
BATCH_TOKENS = 25_000  # of each side (§5.1)
_SENTENCE = 27  # tokens of a typical sentence; the cost depends little on it


@dataclass(frozen=True)
class Training:
    """A row of Table 2."""

    arch: str
    updates: int
    hours: float
    bleu: dict[str, float]  # on newstest2014, by language pair

    @property
    def flops(self) -> float:
        """Cost by the paper's method: time × GPUs × sustained rate of one GPU."""
        rates = rates_of(GPU)
        assert rates is not None
        return 3600 * self.hours * GPUS * rates.single * 1e12


TRAININGS = {
    "base": Training("transformer_base", 100_000, 12, {"en-de": 27.3, "en-fr": 38.1}),
    "big": Training("transformer_big", 300_000, 84, {"en-de": 28.4, "en-fr": 41.8}),
}


def counted_flops(model: ModelConfig, vocabulary: int, updates: int, batch_tokens: int) -> float:
    """Floating-point operations by the model's formulas, for updates of `batch_tokens` tokens per side."""
    lengths = np.full(1000, _SENTENCE)
    per_token = training_flops(model, vocabulary, lengths, lengths) / int(lengths.sum())
    return per_token * batch_tokens * updates
