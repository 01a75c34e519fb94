"""Asynchronous copies from a GPU to the host."""

import torch
from torch import Tensor


class HostCopy:
    """An asynchronous copy of numbers that a device computes."""

    def __init__(self, numbers: Tensor) -> None:
        """Start copying numbers (n,) when they are computed, without waiting for a GPU."""
        self._numbers = numbers.to("cpu", non_blocking=True)  # in pinned memory
        self._copied = torch.cuda.Event() if numbers.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[float]:
        """Wait until the numbers are copied, and return them."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: list[float] = self._numbers.tolist()
        return numbers
