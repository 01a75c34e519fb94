"""A key-value cache with constant shapes and addresses, so that a CUDA graph can replay a step.

The buffers have room for a bucket of positions. A step writes to the next position, attends to the whole bucket, and
hides the rest of it with a bias. The position, the bias and the origins of the rows are tensors that the device
updates. So a step has the same operators, shapes and addresses until a bucket is full or rows leave the batch.

Each step moves the rows from one buffer to another: in place, it would copy all of them twice. So two steps in turn
differ in their addresses, and a CUDA graph is needed for each of the two.

Letters: R rows (open hypotheses), B sentences, T positions of the buffers, D a width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nmtkit.inference.kv_cache import KeyValueCache, LayerCache

BUCKET = 32  # positions by which the buffers grow


class StaticCache(KeyValueCache):
    """A key-value cache of at most `width` rows a sentence, for a model without a window of attention."""

    past_bias: Tensor  # (1, T), 0 for the positions so far, -inf for others

    def __init__(
        self,
        layers: list[LayerCache],
        memory_bias: Tensor,
        positions: Callable[[int, int], Tensor],
        longest: int | None,
        width: int,
    ) -> None:
        """As `KeyValueCache`, with `width` rows for each sentence. The model has `longest` positions; None: any."""
        super().__init__(layers, memory_bias, positions)
        B = memory_bias.size(0)
        self.layouts = 0  # times that shapes and addresses have changed
        self._longest, self._capacity = longest, 0
        self._turns = min(width, 2)  # buffers that steps write to in turn: a single row never moves
        self._buffers = [[own] * self._turns for layer in layers for own in (layer.keys, layer.values)]  # (T, R, D)
        self._position = torch.zeros(1, dtype=torch.long, device=memory_bias.device)  # of the next token
        self._origins = torch.arange(B, device=memory_bias.device)  # (R,) rows that the next step continues
        self.reorder_fixed(self._origins.repeat_interleave(width), width)

    @property
    def turn(self) -> int:
        """Which of two steps in turn comes next."""
        return self.length % self._turns

    def reserve(self) -> None:
        """Make room for the next position."""
        if self.length == self._capacity:
            self._lay_out(self._origins)

    def begin_step(self) -> Tensor:
        """As `KeyValueCache.begin_step`."""
        self.reserve()
        self.past_bias.index_fill_(1, self._position, 0.0)
        return self._encodings.index_select(0, self._position)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append this step's keys and values (R, ·) of a layer; returns those of the whole bucket, (T, R, ·)."""
        return self._write(self._buffers[2 * layer], k), self._write(self._buffers[2 * layer + 1], v)

    def end_step(self) -> None:
        """As `KeyValueCache.end_step`."""
        self._position.add_(1)
        torch.arange(self._origins.numel(), out=self._origins)
        self.count_step()

    def count_step(self) -> None:
        """Count a step that a CUDA graph replays: the part of `end_step` on the host."""
        super().end_step()

    def _write(self, buffers: list[Tensor], new: Tensor) -> Tensor:
        """The next buffer, with the rows that this step continues and its entries (R, ·)."""
        before, after = buffers[self.turn], buffers[self.turn - 1]
        if after is not before:
            torch.index_select(before, 1, self._origins, out=after)
        return after.index_copy_(0, self._position, new.unsqueeze(0))

    def _reorder_layers(self, origins: Tensor) -> None:
        """Let the next step move the rows, in its graph; move them now if their number changes."""
        origins = self._origins[origins]
        if origins.numel() == self._origins.numel():
            self._origins.copy_(origins)
        else:
            self._lay_out(origins)

    def _lay_out(self, rows: Tensor) -> None:
        """Make new buffers with room for the next position, which contain these rows of the present ones."""
        capacity = (self.length // BUCKET + 1) * BUCKET
        if self._longest is not None:
            capacity = max(min(capacity, self._longest), self.length + 1)
        self._encodings = self.positions(0, capacity)  # raises UserError beyond the last position
        for buffers in self._buffers:
            present = buffers[self.turn][: self.length]
            buffers[:] = (each.new_zeros(capacity, rows.numel(), each.size(2)) for each in buffers)
            torch.index_select(present, 1, rows, out=buffers[self.turn][: self.length])
        self.past_bias = self.memory_bias.new_full((1, capacity), -torch.inf)
        self.past_bias[:, : self.length] = 0.0
        self._origins = torch.arange(rows.numel(), device=rows.device)
        self._capacity = capacity
        self.layouts += 1
