"""An exponential moving average of the weights, which often translates better than the weights themselves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmtkit.model.weights import collect_weights


class MovingAverage:
    """Updates `average ← d · average + (1 − d) · weights` after each optimizer step, in float32 and in place.

    In update n, d is at most (1 + n) / (10 + n), so that the initial weights soon lose their influence (as in Marian).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the model's current weights."""
        self.model, self.decay = model, decay
        self.averages = {name: weight.clone() for name, weight in collect_weights(model).items()}

    @torch.no_grad()
    def step(self, update: int, is_taken: Tensor) -> None:
        """Add the weights after an update, counted from 1, unless the scalar `is_taken` says that it was skipped."""
        decay = min(self.decay, (1 + update) / (10 + update))
        weights = [is_taken * (1 - decay)] * len(self.averages)
        torch._foreach_lerp_(list(self.averages.values()), list(self.model.parameters()), weights)

    @torch.no_grad()
    def load(self, averages: Iterable[tuple[str, Tensor]]) -> None:
        """Resume from averages by parameter name, each in the shape (…) of its parameter."""
        for name, average in averages:
            self.averages[name].copy_(average)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Use the averaged weights in the model within this context, then restore its own weights bit for bit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap weights and averages in place, one tensor at a time, to keep their addresses and save memory."""
        for average, weight in zip(self.averages.values(), self.model.parameters(), strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


class ScheduleFreeAverage(MovingAverage):
    """The average x that schedule-free Adam computes, recovered from its weights y and its iterates z.

    As y = (1 - β1)·z + β1·x, the optimizer stores no x (Defazio et al. 2024).
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Start from the model's current weights."""
        super().__init__(model, decay=0.0)
        self.optimizer = optimizer

    @torch.no_grad()
    def step(self, update: int, is_taken: Tensor) -> None:
        """Recompute the average after an update."""
        beta = self.optimizer.param_groups[0]["betas"][0]
        for average, weight in zip(self.averages.values(), self.model.parameters(), strict=True):
            if "z" in (state := self.optimizer.state.get(weight, {})):  # otherwise frozen, or every update was skipped
                torch.lerp(weight, state["z"], 1 - 1 / beta, out=average)
