"""The memory that torch's operators and Python take on a CPU."""

import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_memory(work: Callable[[], None]) -> int:
    """The peak of the bytes in tensors that `work` makes, and the peak of those in arrays and objects of Python."""
    allocations = _Allocations()
    tracemalloc.start()
    try:
        with allocations:
            work()
        return allocations.peak + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors that operators have made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operator(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.untyped_storage() not in self._known:
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.live -= size
