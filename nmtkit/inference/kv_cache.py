"""The Transformer decoder's key-value cache.

A row is an open hypothesis. Each belongs to a sentence, and the rows of a sentence are adjacent; their number may
change from step to step. Keys and values of the source are stored once for each sentence. Keys and values of a row are
stored time first, so that a step appends to the end and reads the past without a copy.

Letters: R rows, B sentences, T positions so far, S source length, D a width, H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_GROWTH = 16  # positions that a buffer has left after it was enlarged
_FILLED = 0.75  # share of sentences that still have rows, above which compacting the source is not worth a copy


@dataclass
class LayerCache:
    """One layer's keys and values: of the source (B, H, S, ·), and of the rows (at least T, at least R, ·)."""

    memory_keys: Tensor
    memory_values: Tensor
    keys: Tensor
    values: Tensor


class KeyValueCache:
    """The state of a batch of B sentences after `length` steps; at first each has one row."""

    def __init__(self, layers: list[LayerCache], memory_bias: Tensor) -> None:
        self.layers = layers
        self.memory_bias = memory_bias  # (B, H, 1, S), 0 for source tokens, -inf for padding
        self.length = 0
        self._sentence_of_row = torch.arange(memory_bias.size(0), device=memory_bias.device)  # (R,)
        self._widest = 1  # most rows of one sentence
        self._slots: Tensor | None = None  # (R,) sentence · widest + number in it; None if all have `widest` rows
        self._unused: dict[int, Tensor] = {}  # by width, a buffer that the next reordering can write to

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append this step's keys and values (R, ·) of a layer; returns all so far, (T + 1, R, ·).

        `advance` counts the position, after all layers have appended.
        """
        cache, end, rows = self.layers[layer], self.length + 1, k.size(0)
        cache.keys, cache.values = self._appended(cache.keys, k), self._appended(cache.values, v)
        return cache.keys[:end, :rows], cache.values[:end, :rows]

    def advance(self) -> None:
        """Count one more step."""
        self.length += 1

    def by_sentence(self, x: Tensor) -> Tensor:
        """Rows (R, D) to (B, widest, D): a sentence's rows side by side, padded with zeros."""
        if self._slots is not None:
            x = x.new_zeros(self.memory_bias.size(0) * self._widest, x.size(1)).index_copy_(0, self._slots, x)
        return x.view(-1, self._widest, x.size(1))

    def by_row(self, x: Tensor) -> Tensor:
        """The inverse of `by_sentence`."""
        x = x.flatten(0, 1)
        return x if self._slots is None else x.index_select(0, self._slots)

    def reorder(self, origins: Tensor) -> None:
        """As `InferenceState.reorder`."""
        rows = self._sentence_of_row.numel()
        if origins.numel() == rows and torch.equal(origins, torch.arange(rows, device=origins.device)):
            return
        for cache in self.layers:
            cache.keys, cache.values = self._reordered(cache.keys, origins), self._reordered(cache.values, origins)
        self._sentence_of_row = self._sentence_of_row[origins]
        present, numbers, counts = torch.unique_consecutive(
            self._sentence_of_row, return_inverse=True, return_counts=True
        )
        if present.numel() <= _FILLED * self.memory_bias.size(0):
            self._sentence_of_row = numbers
            self._keep_sentences(present)
        self._widest = int(counts.max())
        self._slots = None
        if origins.numel() < self.memory_bias.size(0) * self._widest:
            first = (counts.cumsum(0) - counts)[numbers]  # the first row of each row's sentence
            within = torch.arange(origins.numel(), device=origins.device) - first
            self._slots = self._sentence_of_row * self._widest + within

    def _keep_sentences(self, sentences: Tensor) -> None:
        self.memory_bias = self.memory_bias.index_select(0, sentences)
        for cache in self.layers:
            cache.memory_keys = cache.memory_keys.index_select(0, sentences)
            cache.memory_values = cache.memory_values.index_select(0, sentences)

    def _appended(self, cache: Tensor, new: Tensor) -> Tensor:
        """A buffer with the next position's entries (R, ·)."""
        rows, width = new.shape
        if self.length == cache.size(0):
            longer = cache.new_empty(self.length + _GROWTH, rows, width)
            longer[: self.length] = cache[:, :rows]
            cache = longer
        cache[self.length, :rows] = new
        return cache

    def _reordered(self, cache: Tensor, origins: Tensor) -> Tensor:
        """The rows `origins` of a buffer, copied to the unused one: fresh memory costs more than the copy."""
        rows, width = origins.numel(), cache.size(2)
        moved = self._unused.pop(width, None)
        if moved is None or moved.size(0) <= self.length or moved.size(1) < rows:
            moved = cache.new_empty(self.length + _GROWTH, rows, width)
        torch.index_select(cache[: self.length], 1, origins, out=moved[: self.length, :rows])
        self._unused[width] = cache
        return moved
