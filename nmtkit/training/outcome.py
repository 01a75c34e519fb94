"""The outcome of an update, which the host of a GPU reads while the GPU computes the next update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.data.packing import Share
from nmtkit.training.loader import Work


class HostCopy:
    """Numbers that a device computes, on their way to the host."""

    def __init__(self, numbers: Tensor) -> None:
        """Copy numbers (n,) once they are computed, without waiting for a GPU."""
        self._numbers = numbers.to("cpu", non_blocking=True)  # in pinned memory
        self._copied = torch.cuda.Event() if numbers.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[float]:
        """The numbers; waits until they are here."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: list[float] = self._numbers.tolist()
        return numbers


@dataclass(frozen=True)
class Outcome:
    """An update that a device may still be computing."""

    update: int
    learning_rate: float
    numbers: HostCopy  #: loss and negative log-likelihood of each dataset, then the norm of the gradient
    work: Work
    share: Share  #: this rank's micro-batches
