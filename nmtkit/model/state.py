"""What the decoder remembers between two steps: an explicit argument of `Transformer.step`.

A row is a hypothesis that goes on. Each belongs to a sentence, and the rows of a sentence stand together; how many it
has may change from step to step. The source's keys and values stand once a sentence, whatever its rows; a row's own
keys and values stand time first, so that a step adds to the end and reads what it has without a copy.

Letters: R rows, B sentences, T positions so far, S source length, D a width, H heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_ROOM = 16  # positions that a cache has left when it has been moved
_FILLED = 0.75  # of the sentences, while so many are still there, the source of the others is not worth moving


@dataclass
class LayerState:
    """One decoder layer's keys and values: of the source (B, H, S, ·), and of the rows so far (room, R or more, ·)."""

    memory_keys: Tensor
    memory_values: Tensor
    keys: Tensor
    values: Tensor


class DecoderState:
    """The state of a batch of B sentences after `length` steps; at first each has one row."""

    def __init__(self, layers: list[LayerState], memory_bias: Tensor) -> None:
        self.layers = layers
        self.memory_bias = memory_bias  # (B, H, 1, S), 0 for real source tokens, -inf for padding
        self.length = 0
        self._owners = torch.arange(memory_bias.size(0), device=memory_bias.device)  # (R,) sentence of each row
        self._widest = 1  # rows of the sentence that has most
        self._places: Tensor | None = None  # (R,) sentence · widest + number within it; None where none is missing
        self._spares: dict[int, Tensor] = {}  # by width, a cache that is out of use and can take the next one's rows

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add this step's keys and values (R, ·) of a layer; returns all so far, (T + 1, R, ·).

        The position itself is counted by `advance`, after all layers have been through it.
        """
        cache, end, rows = self.layers[layer], self.length + 1, k.size(0)
        cache.keys, cache.values = self._with(cache.keys, k), self._with(cache.values, v)
        return cache.keys[:end, :rows], cache.values[:end, :rows]

    def advance(self) -> None:
        """Count one more step as done."""
        self.length += 1

    def by_sentence(self, x: Tensor) -> Tensor:
        """Rows (R, D) to (B, widest, D): each sentence's rows side by side, zeros where it has fewer than others."""
        if self._places is not None:
            x = x.new_zeros(self.memory_bias.size(0) * self._widest, x.size(1)).index_copy_(0, self._places, x)
        return x.view(-1, self._widest, x.size(1))

    def by_row(self, x: Tensor) -> Tensor:
        """The inverse of `by_sentence`."""
        x = x.flatten(0, 1)
        return x if self._places is None else x.index_select(0, self._places)

    def reorder(self, origins: Tensor) -> None:
        """Row i goes on from row `origins[i]` and belongs to its sentence; rows may become more, or fewer.

        Rows of one sentence must stay together. Sentences that no row comes from leave the batch.
        """
        rows = self._owners.numel()
        if origins.numel() == rows and torch.equal(origins, torch.arange(rows, device=origins.device)):
            return
        for cache in self.layers:
            cache.keys, cache.values = self._moved(cache.keys, origins), self._moved(cache.values, origins)
        self._owners = self._owners[origins]
        present, numbers, counts = torch.unique_consecutive(self._owners, return_inverse=True, return_counts=True)
        if present.numel() <= _FILLED * self.memory_bias.size(0):
            self._owners = numbers
            self._keep_sentences(present)
        self._widest = int(counts.max())
        self._places = None
        if origins.numel() < self.memory_bias.size(0) * self._widest:
            first = (counts.cumsum(0) - counts)[numbers]  # the first row of each row's sentence
            within = torch.arange(origins.numel(), device=origins.device) - first
            self._places = self._owners * self._widest + within

    def _keep_sentences(self, sentences: Tensor) -> None:
        self.memory_bias = self.memory_bias.index_select(0, sentences)
        for cache in self.layers:
            cache.memory_keys = cache.memory_keys.index_select(0, sentences)
            cache.memory_values = cache.memory_values.index_select(0, sentences)

    def _with(self, cache: Tensor, new: Tensor) -> Tensor:
        """A cache with the next position's entries (R, ·)."""
        rows, width = new.shape
        if self.length == cache.size(0):
            longer = cache.new_empty(self.length + _ROOM, rows, width)
            longer[: self.length] = cache[:, :rows]
            cache = longer
        cache[self.length, :rows] = new
        return cache

    def _moved(self, cache: Tensor, origins: Tensor) -> Tensor:
        """The rows `origins` of a cache, in what was spare: fresh memory costs more than the copy. It is spare then."""
        rows, width = origins.numel(), cache.size(2)
        moved = self._spares.pop(width, None)
        if moved is None or moved.size(0) <= self.length or moved.size(1) < rows:
            moved = cache.new_empty(self.length + _ROOM, rows, width)
        torch.index_select(cache[: self.length], 1, origins, out=moved[: self.length, :rows])
        self._spares[width] = cache
        return moved
