"""Micro-batches as tensors: collation and padding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.batching import batch_by_tokens
from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Split
from nmtkit.data.padding import Lengths, pad_rows
from nmtkit.text.vocabulary import BOS, PAD

T = TypeVar("T", bound="Movable")


class Movable:
    """Base class of dataclasses whose tensors are copied together."""

    def to(self: T, device: torch.device) -> T:
        """Copy all tensors to a device, asynchronously if they are in pinned memory."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self: T) -> T:
        """Copy all tensors to pinned memory, from which a GPU can copy asynchronously."""
        return self._with(Tensor.pin_memory)

    def _with(self: T, change: Callable[[Tensor], Tensor]) -> T:
        batch: Any = self
        tensors = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        copied: T = replace(batch, **tensors)
        return copied


@dataclass(frozen=True)
class Batch(Movable):
    """A micro-batch of B sentence pairs, padded at the end. tgt_in is tgt_out shifted right after BOS (§3.1).

    Lengths count EOS. `target_indices` are the positions of the target tokens, without padding, in the
    flattened tgt_out. They are computed on the CPU, because on a GPU the host would have to wait.
    """

    src: Tensor  # (B, S) int64
    source_lengths: Tensor  # (B,)
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (B, T)
    target_lengths: Tensor  # (B,)
    target_indices: Tensor  # (target_tokens,)
    source_tokens: int  # without padding, EOS counted
    alignment: Tensor | None = None  # (B, T, S), see `Alignments.gather`

    @classmethod
    def of(
        cls, src: Tensor, source_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, target_lengths: Tensor
    ) -> "Batch":
        """Create a batch from padded src (B, S), tgt_in and tgt_out (B, T) with lengths (B,), all on the CPU."""
        target_indices = (torch.arange(tgt_out.size(1)) < target_lengths.unsqueeze(1)).flatten().nonzero().squeeze(1)
        return cls(src, source_lengths, tgt_in, tgt_out, target_lengths, target_indices, int(source_lengths.sum()))

    @classmethod
    def unpadded(cls, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> "Batch":
        """Create a batch from src (B, S), tgt_in and tgt_out (B, T) whose rows are whole sentences without padding."""
        source_lengths, target_lengths = (torch.full((len(rows),), rows.size(1)) for rows in (src, tgt_out))
        return cls.of(src, source_lengths, tgt_in, tgt_out, target_lengths)

    @property
    def target_tokens(self) -> int:
        """The number of target tokens without padding, including EOS."""
        return self.target_indices.numel()

    @property
    def sentences(self) -> int:
        """The number of sentence pairs, B."""
        return len(self.src)

    @property
    def longest(self) -> tuple[int, int]:
        """The number of tokens of the longest sentence on each side, (S, T)."""
        return self.src.size(1), self.tgt_out.size(1)

    @property
    def padded_tokens(self) -> int:
        """The tokens of both sides, including padding, as a measure of the batch's cost."""
        return self.src.numel() + self.tgt_out.numel()

    def parts_within(self, max_tokens: int) -> Iterator["Batch"]:
        """Divide into parts of similar lengths with at most `max_tokens` padded tokens per side, or one pair each."""
        if self.sentences * max(self.longest) <= max_tokens:
            yield self
            return
        lengths = self.source_lengths.numpy(), self.target_lengths.numpy()
        order = np.argsort(np.maximum(*lengths), kind="stable")
        for rows in batch_by_tokens(order, *lengths, max_tokens, max_tokens):
            yield self.rows(torch.from_numpy(rows))

    def rows(self, rows: Tensor) -> "Batch":
        """Return a batch of the sentence pairs in these rows (N,)."""
        lengths = self.source_lengths[rows], self.target_lengths[rows]
        source, target = (int(side.max()) for side in lengths)
        tgt_in, tgt_out = (side[rows, :target] for side in (self.tgt_in, self.tgt_out))
        part = Batch.of(self.src[rows, :source], lengths[0], tgt_in, tgt_out, lengths[1])
        return part if self.alignment is None else replace(part, alignment=self.alignment[rows, :target, :source])


def collate(split: Split, indices: Indices) -> Batch:
    """Read the sentence pairs with these indices (B,) as one batch."""
    return make_batch(*split.source.gather(indices), *split.target.gather(indices))


def make_batch(
    source: NDArray[np.generic], source_lengths: Lengths, target: NDArray[np.generic], target_lengths: Lengths
) -> Batch:
    """Create a batch from the concatenated tokens of each side and the lengths (B,) of its sentences with EOS."""
    tgt_out = pad_rows(target, target_lengths)
    tgt_in = np.full_like(tgt_out, PAD)
    tgt_in[:, 0] = BOS
    is_input = np.arange(1, tgt_out.shape[1]) < target_lengths[:, None]  # EOS is never an input
    tgt_in[:, 1:][is_input] = tgt_out[:, :-1][is_input]
    sides = (
        pad_rows(source, source_lengths),
        source_lengths.astype(np.int64),
        tgt_in,
        tgt_out,
        target_lengths.astype(np.int64),
    )
    return Batch.of(*map(torch.from_numpy, sides))
