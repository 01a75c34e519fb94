"""The Transformer decoder's key-value cache.

Keys and values of the source are stored once for each sentence. Keys and values of a row are stored time-first, so that
a step appends to the end and reads earlier positions without a copy.

Letters: R rows (open hypotheses), B sentences, T positions so far, S source length, D a width, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmtkit.inference.sentence_rows import RowState, SentenceRows

_GROWTH = 16  # positions that a buffer has left after it was enlarged


@dataclass
class LayerCache:
    """The keys and values of one layer: of the source (B, H, S, width), and of rows (at least T, at least R, width).

    With an SSRU, rows have a state (R, D) instead.
    """

    memory_keys: Tensor
    memory_values: Tensor
    keys: Tensor
    values: Tensor
    state: Tensor | None = None


class KeyValueCache(RowState):
    """The state of a batch of B sentences after `length` steps. Initially each sentence has one row."""

    def __init__(self, layers: list[LayerCache], memory_bias: Tensor, positions: Callable[[int, int], Tensor]) -> None:
        """`positions(start, length)` returns the encodings (length, D) of positions in the target."""
        self.layers = layers
        self.memory_bias = memory_bias  # (B, H, 1, S), 0 for source tokens, -inf for padding
        self.positions = positions
        self.length = 0
        self.rows = SentenceRows(memory_bias.size(0), memory_bias.device)
        self._unused: dict[int, Tensor] = {}  # by width, a buffer that the next reordering can write to

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append this step's keys and values (R, width) of a layer; return all so far (T + 1, R, width). The caller
        then counts the step in `length`."""
        cache, end, rows = self.layers[layer], self.length + 1, k.size(0)
        cache.keys, cache.values = self._appended(cache.keys, k), self._appended(cache.values, v)
        return cache.keys[:end, :rows], cache.values[:end, :rows]

    def _reorder_rows(self, origins: Tensor) -> None:
        for cache in self.layers:
            if cache.state is None:
                cache.keys, cache.values = self._reordered(cache.keys, origins), self._reordered(cache.values, origins)
            else:
                cache.state = cache.state.index_select(0, origins)

    def _keep_sentences(self, sentences: Tensor) -> None:
        self.memory_bias = self.memory_bias.index_select(0, sentences)
        for cache in self.layers:
            cache.memory_keys = cache.memory_keys.index_select(0, sentences)
            cache.memory_values = cache.memory_values.index_select(0, sentences)

    def _appended(self, cache: Tensor, new: Tensor) -> Tensor:
        """Return a buffer with the entries (R, width) of the next position appended."""
        rows, width = new.shape
        if self.length == cache.size(0):
            longer = cache.new_empty(self.length + _GROWTH, rows, width)
            longer[: self.length] = cache[:, :rows]
            cache = longer
        cache[self.length, :rows] = new
        return cache

    def _reordered(self, cache: Tensor, origins: Tensor) -> Tensor:
        """Copy the rows `origins` of a buffer to the unused buffer, because allocating costs more than copying."""
        rows, width = origins.numel(), cache.size(2)
        moved = self._unused.pop(width, None)
        if moved is None or moved.size(0) <= self.length or moved.size(1) < rows:
            moved = cache.new_empty(self.length + _GROWTH, rows, width)
        torch.index_select(cache[: self.length], 1, origins, out=moved[: self.length, :rows])
        self._unused[width] = cache
        return moved
