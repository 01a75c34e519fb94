"""Several models with the same vocabularies that search together, averaging the probabilities of each token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmtkit.errors import UserError
from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.protocol import AttentionWeights, InferenceModel, log_sum_exp
from nmtkit.inference.shortlist import Ids


@dataclass
class EnsembleState:
    """The decoding state of each model of an ensemble: an `InferenceState`, or a `RowState` in tensors."""

    states: list[Any]

    def reorder(self, origins: Any) -> None:
        for state in self.states:
            state.reorder(origins)

    def reorder_fixed(self, origins: Any, width: int) -> None:
        for state in self.states:
            state.reorder_fixed(origins, width)


class Ensemble(InferenceModel):
    """Log of the mean of the models' probabilities, computed in fp32. The models may differ in size and backend."""

    def __init__(self, models: Sequence[InferenceModel]) -> None:
        """`models` are one or more models with the same vocabularies and on the same device."""
        self.models, first = models, models[0]
        self.device, self.vocabulary_size = first.device, first.vocabulary_size
        self.precision, self.faster_precision = first.precision, first.faster_precision
        limits = [model.longest_sequence for model in models if model.longest_sequence is not None]
        self.longest_sequence = min(limits, default=None)
        self.attention_layers = min(model.attention_layers for model in models)
        self.step_bytes = sum(model.step_bytes for model in models) + _MEMBER_BYTES * (len(models) - 1)

    def encode(self, src: Ints, lengths: Ints) -> list[Any]:
        return [model.encode(src, lengths) for model in self.models]

    def start(self, memory: list[Any]) -> EnsembleState:
        return EnsembleState([model.start(own) for model, own in zip(self.models, memory, strict=True)])

    def step(self, tokens: Ints, state: EnsembleState) -> Floats:
        return _mean([model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)])

    def restricted_to(self, shortlists: Sequence[Ids]) -> "Ensemble":
        """Restrict each model, which then normalizes over the shortlists; see `InferenceModel.restricted_to`."""
        return Ensemble([model.restricted_to(shortlists) for model in self.models])

    def state_bytes(self, tokens: int) -> int:
        return sum(model.state_bytes(tokens) for model in self.models)

    def score(self, src: Ints, lengths: Ints, tgt: Ints, tgt_lengths: Ints) -> Floats:
        """Return the log of the mean probability (B, T) of each token of tgt (B, T), see `InferenceModel.score`."""
        return _mean([model.score(src, lengths, tgt, tgt_lengths) for model in self.models])

    def attention(self, src: Ints, lengths: Ints, tgt_in: Ints) -> AttentionWeights:
        """Raise UserError, because the models of an ensemble have different attention."""
        raise UserError("an ensemble has no single attention to show: give one checkpoint")

    def alignment(self, src: Ints, lengths: Ints, tgt_in: Ints, layer: int | None) -> Floats:
        """Return the attention (B, T, S) averaged over heads and models, see `InferenceModel.alignment`."""
        mean: Floats = np.mean([model.alignment(src, lengths, tgt_in, layer) for model in self.models], axis=0)
        return mean


_MEMBER_BYTES = 8  # that a further model takes for each log-probability: its own, and a copy in `_mean`


def _mean(log_probs: list[Floats]) -> Floats:
    total = log_sum_exp(np.stack(log_probs), 0)
    total -= np.float32(math.log(len(log_probs)))
    return total
