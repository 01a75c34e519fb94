"""Several models of the same vocabularies that search together: the probabilities of each token are averaged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.inference.protocol import AttentionWeights, FixedInferenceState, InferenceModel
from nmtkit.inference.shortlist import Ids


@dataclass
class EnsembleState:
    """The state of each model."""

    states: list[FixedInferenceState]

    def reorder(self, origins: Tensor) -> None:
        """As `InferenceState.reorder`, for all models."""
        for state in self.states:
            state.reorder(origins)

    def reorder_fixed(self, origins: Tensor, width: int) -> None:
        """As `FixedInferenceState.reorder_fixed`, for all models."""
        for state in self.states:
            state.reorder_fixed(origins, width)


class Ensemble(InferenceModel):
    """Log of the mean of the models' probabilities, computed in fp32. The models may differ in size and backend."""

    def __init__(self, models: Sequence[InferenceModel]) -> None:
        """At least one model; all have the same vocabularies and device."""
        self.models, first = models, models[0]
        self.device, self.vocabulary_size = first.device, first.vocabulary_size
        self.precision, self.faster_precision = first.precision, first.faster_precision
        limits = [model.longest_sequence for model in models if model.longest_sequence is not None]
        self.longest_sequence = min(limits, default=None)
        self.attention_layers = min(model.attention_layers for model in models)
        self.step_bytes = sum(model.step_bytes for model in models) + _MEMBER_BYTES * (len(models) - 1)

    def encode(self, src: Tensor, lengths: Tensor) -> list[Any]:
        """As `InferenceModel.encode`, of each model."""
        return [model.encode(src, lengths) for model in self.models]

    def start(self, memory: list[Any]) -> EnsembleState:
        """As `InferenceModel.start`."""
        return EnsembleState([model.start(own) for model, own in zip(self.models, memory, strict=True)])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """As `InferenceModel.step`."""
        return _mean([model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)])

    def restricted_to(self, shortlists: Sequence[Ids]) -> "Ensemble":
        """As `InferenceModel.restricted_to`: each model normalizes its probabilities over the shortlists."""
        return Ensemble([model.restricted_to(shortlists) for model in self.models])

    def state_bytes(self, tokens: int) -> int:
        """As `InferenceModel.state_bytes`, of all models."""
        return sum(model.state_bytes(tokens) for model in self.models)

    def score(self, src: Tensor, lengths: Tensor, tgt: Tensor, tgt_lengths: Tensor) -> Tensor:
        """As `InferenceModel.score`: each model scores in its own way."""
        return _mean([model.score(src, lengths, tgt, tgt_lengths) for model in self.models])

    def attention(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> AttentionWeights:
        """Raises UserError."""
        raise UserError("an ensemble has no single attention to show: give one checkpoint")

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int | None) -> Tensor:
        """As `InferenceModel.alignment`, the mean over the models."""
        return torch.stack([model.alignment(src, lengths, tgt_in, layer) for model in self.models]).mean(0)


_MEMBER_BYTES = 8  # that a further model takes for each log-probability: its own, and a copy in `_mean`


def _mean(log_probs: list[Tensor]) -> Tensor:
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
