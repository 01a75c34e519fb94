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

    def reorder(self, rows: Tensor) -> None:
        """Each row goes on from the given row of the same sentence; rows (B·beam,)."""
        for cache in self.layers:
            cache.keys = cache.keys[:, :, : self.length].index_select(0, rows)
            cache.values = cache.values[:, :, : self.length].index_select(0, rows)

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (b,) with their hypotheses: finished ones leave the batch."""
        hypotheses = torch.arange(self.beam, device=sentences.device)
        rows = (sentences.unsqueeze(1) * self.beam + hypotheses).flatten()
        self.reorder(rows)
        self.memory_mask = self.memory_mask.index_select(0, sentences)
        for cache in self.layers:
            cache.memory_keys = cache.memory_keys.index_select(0, sentences)
            cache.memory_values = cache.memory_values.index_select(0, sentences)


def _grow(cache: Tensor, needed: int) -> Tensor:
    """The cache (rows, H, room, ·) with room for at least `needed` positions, and as many again."""
    rows, heads, room, width = cache.shape
    larger = cache.new_empty(rows, heads, max(2 * needed, 16), width)
    larger[:, :, :room] = cache
    return larger
