"""An exponential moving average of the weights, which often translates better than the weights themselves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nmtkit.checkpoint import collect_weights
from nmtkit.model.transformer import Transformer


class MovingAverage:
    """`average ← d · average + (1 − d) · weights` after each step of the optimizer, in float32 and in place.

    d is `decay`, and (1 + n) / (10 + n) in the n-th update while that is less, so that the weights drawn at the start
    are soon forgotten (as Marian and TensorFlow do it).
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        """Begins with the weights that the model has now."""
        self.model, self.decay = model, decay
        self.averages = {name: weight.clone() for name, weight in collect_weights(model).items()}

    @torch.no_grad()
    def step(self, update: int) -> None:
        """Take in the weights after an update, counted from 1. An update that is skipped is left out."""
        decay = min(self.decay, (1 + update) / (10 + update))
        torch._foreach_lerp_(list(self.averages.values()), list(self.model.parameters()), 1 - decay)

    @torch.no_grad()
    def load(self, averages: Iterable[tuple[str, Tensor]]) -> None:
        """Go on from averages, each with the name of its parameter."""
        for name, average in averages:
            self.averages[name].copy_(average)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Within it the model has the averages for weights; afterwards its own again, bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """In place, one tensor after the other: neither addresses nor the memory needed change."""
        for average, weight in zip(self.averages.values(), self.model.parameters(), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
