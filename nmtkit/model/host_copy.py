"""Numbers on their way from a GPU to the host, which does not wait for them."""

import torch
from torch import Tensor


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
