"""Several models of the same vocabularies that search together: the probabilities of each token are averaged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmtkit.model.transformer import Transformer


@dataclass
class EnsembleState:
    """The state of each model."""

    states: list[Any]

    def reorder(self, origins: Tensor) -> None:
        """As `DecoderState.reorder`, for all models."""
        for state in self.states:
            state.reorder(origins)


class Ensemble:
    """Log of the mean of the models' probabilities, computed in fp32, where a single model has those of its own."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        self._for_search: list[Any] = [model.for_search for model in models]

    def encode(self, src: Tensor, lengths: Tensor) -> list[Any]:
        """Each model's encoder output for src (B, S) of these lengths (B,)."""
        return [model.encode(src, lengths) for model in self._for_search]

    def start(self, memory: list[Any]) -> EnsembleState:
        """The state before the first step."""
        return EnsembleState([model.start(own) for model, own in zip(self._for_search, memory, strict=True)])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """Feed tokens (R,); log-probabilities (R, W) of the next."""
        return _mean([model.step(tokens, own) for model, own in zip(self._for_search, state.states, strict=True)])

    def __call__(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Log-probabilities (B, T, W) for src (B, S) of these lengths (B,) and tgt_in (B, T)."""
        return _mean([model(src, lengths, tgt_in).log_softmax(-1, torch.float32) for model in self.models])


def _mean(log_probs: list[Tensor]) -> Tensor:
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
