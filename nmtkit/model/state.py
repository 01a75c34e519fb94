"""What the decoder remembers between two steps: an explicit argument of `Transformer.step`.

Rows are sentence-major: row = sentence · beam + hypothesis. The source's keys and values stand once a sentence and
are shared by its beam; the hypotheses' own keys and values stand once a row, in buffers that grow by doubling.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LayerState:
    """One decoder layer's keys and values: of the source (B, H, S, ·), and of each row so far (rows, H, room, ·)."""

    memory_keys: Tensor
    memory_values: Tensor
    keys: Tensor
    values: Tensor


class DecoderState:
    """The state of a batch of B sentences with `beam` hypotheses each, after `length` steps."""

    def __init__(self, layers: list[LayerState], memory_mask: Tensor, beam: int) -> None:
        self.layers = layers
        self.memory_mask = memory_mask  # (B, 1, 1, S), True = real source token
        self.beam = beam
        self.length = 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add this step's keys and values (rows, H, 1, ·) of a layer; returns all so far, (rows, H, length + 1, ·).

        The position itself is counted by `advance`, after all layers have been through it.
        """
        cache, end = self.layers[layer], self.length + 1
        if end > cache.keys.size(2):
            cache.keys, cache.values = _grow(cache.keys, end), _grow(cache.values, end)
        cache.keys[:, :, self.length : end] = k
        cache.values[:, :, self.length : end] = v
        return cache.keys[:, :, :end], cache.values[:, :, :end]

    def advance(self) -> None:
        """Count one more step as done."""
        self.length += 1

    def reorder(self, origins: Tensor) -> None:
        """Row i goes on from row `origins[i]`; sentences that no row comes from leave the batch.

        `origins` (b·beam,) names rows of one sentence for each `beam` successive ones. Only what moves is copied: a row
        that stays in its place costs nothing, nor does a sentence.
        """
        rows = _Moves(origins)
        sentences = _Moves(origins[:: self.beam] // self.beam)
        self.memory_mask = self.memory_mask.index_select(0, sentences.origins)
        for cache in self.layers:
            cache.memory_keys = sentences.apply(cache.memory_keys)
            cache.memory_values = sentences.apply(cache.memory_values)
            cache.keys = rows.apply(cache.keys, self.length)
            cache.values = rows.apply(cache.values, self.length)


class _Moves:
    """Rows that change their places: the new row i is the old row origins[i]."""

    def __init__(self, origins: Tensor) -> None:
        self.origins = origins
        self.places = (origins != torch.arange(origins.numel(), device=origins.device)).nonzero().squeeze(1)

    def apply(self, cache: Tensor, length: int | None = None) -> Tensor:
        """Move the rows of a cache (rows, H, room, ·) in place, as far as `length`; returns those that remain."""
        if self.places.numel():
            used = cache[:, :, :length]
            used.index_copy_(0, self.places, used.index_select(0, self.origins[self.places]))
        return cache[: self.origins.numel()]


def _grow(cache: Tensor, needed: int) -> Tensor:
    """The cache (rows, H, room, ·) with room for at least `needed` positions, and as many again."""
    rows, heads, room, width = cache.shape
    larger = cache.new_empty(rows, heads, max(2 * needed, 16), width)
    larger[:, :, :room] = cache
    return larger
