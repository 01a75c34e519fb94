"""A pretended CUDA graph: it records operators with their tensors, and replays them on the same tensors.

As with a real graph, a capture changes no tensor that existed before it, and a replay does nothing but the captured
operators: it reads and writes the same memory again.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    """The address of the memory that a tensor shares with its views."""
    return tensor.untyped_storage().data_ptr()


class PretendedGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands in for `torch.cuda.CUDAGraph`. `made` lists all graphs; each counts its `replays`."""

    made: list["PretendedGraph"] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replays = 0
        self.operators: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._own: set[int] = set()  # addresses of the memory that the capture has allocated
        self._before: dict[int, tuple[Any, Any]] = {}  # other memory that it has changed, and a copy from before
        self.made.append(self)

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        """Record from here on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """End the recording and undo its effects."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunction():
            for memory, before in self._before.values():
                memory.copy_(before)

    def replay(self) -> None:
        """Compute the recorded operators again."""
        self.replays += 1
        with torch._C.DisableTorchFunction():
            for operator, args, kwargs, results in self.operators:
                again = tensors_in(operator(*args, **kwargs))
                for tensor, new in zip(results, again, strict=True):
                    if tensor.data_ptr() != new.data_ptr():
                        tensor.copy_(new)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for number, argument in enumerate(operator._schema.arguments):
            value = kwargs.get(argument.name) if argument.kwarg_only or number >= len(args) else args[number]
            if isinstance(value, Tensor) and argument.alias_info is not None and argument.alias_info.is_write:
                self._save(value)
        result = operator(*args, **kwargs)
        results = tensors_in(result)
        self._own.update({*map(address, results)} - {*map(address, tensors_in((args, kwargs)))})
        self.operators.append((operator, args, kwargs, results))
        return result

    def _save(self, tensor: Tensor) -> None:
        """Copy memory that existed before the capture, before its first change."""
        if (place := address(tensor)) not in self._own and place not in self._before:
            self._before[place] = tensor.untyped_storage(), tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]


def pretend_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `torch.cuda` capture and replay pretended graphs."""
    monkeypatch.setattr(PretendedGraph, "made", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
