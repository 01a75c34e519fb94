"""Steps of a search that CUDA graphs replay: the host launches one graph instead of all operators of a step.

A graph repeats the captured operators with the same shapes and addresses. So the tokens of a step are copied to where
the graph reads them, and the `StaticCache` keeps its tensors until it has a new layout.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from nmtkit.inference.static_cache import StaticCache

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    result: Any  # of the step: tensors to which the graph writes
    read: Tensor | None  # a tensor that the graph reads, which must live as long


class StepGraphs:
    """A `FixedInferenceState`: a `StaticCache` and the graphs of its steps.

    A step is computed without a graph the first time after a new layout, which also prepares kernels and their memory.
    The second time it is captured.
    """

    def __init__(self, cache: StaticCache) -> None:
        self.cache = cache
        self._layout = -1  # the one of `_captured`
        self._captured: dict[tuple[Any, ...], _Captured | None] = {}  # None: computed once, without a graph

    def reorder(self, origins: Tensor) -> None:
        """As `InferenceState.reorder`."""
        self.cache.reorder(origins)

    def reorder_fixed(self, origins: Tensor, width: int) -> None:
        """As `FixedInferenceState.reorder_fixed`."""
        self.cache.reorder_fixed(origins, width)

    def run(self, step: Callable[..., Result], tokens: Tensor, *options: object, read: Tensor | None = None) -> Result:
        """Return `step(tokens, cache, *options)`, valid until the next call. `read` is a tensor that the step reads
        beside the weights of the model, the cache and the tokens (R,)."""
        self._prepare(tokens)
        key = (step, options, self.cache.turn)
        if key not in self._captured:
            self._captured[key] = None
            return step(self._tokens, self.cache, *options)
        captured = self._captured[key]
        if captured is None:
            captured = _capture(lambda: step(self._tokens, self.cache, *options), self._pool, tokens.device)
            self._captured[key] = captured._replace(read=read)
        else:
            self.cache.count_step()
        captured.graph.replay()
        result: Result = captured.result
        return result

    def _prepare(self, tokens: Tensor) -> None:
        """Put the tokens where the graphs read them; drop the graphs if the cache has a new layout."""
        self.cache.reserve()
        if self._layout != self.cache.layouts:
            self._layout = self.cache.layouts
            self._captured.clear()
            self._tokens = torch.empty_like(tokens)
            self._pool = torch.cuda.graph_pool_handle()  # one for all graphs of a layout, as they never run together
        self._tokens.copy_(tokens)


def _capture(step: Callable[[], Any], pool: Any, device: torch.device) -> _Captured:
    """Capture a step, without computing it.

    `torch.cuda.graph` would wait for the GPU and return all unused memory to it, which takes longer than some steps.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_stream(device)):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            result = step()
        finally:
            graph.capture_end()
    return _Captured(graph, result, None)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures: the default one has none. cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
