"""Packed micro-batches: sentence pairs of all lengths, concatenated on each side without padding.

A planned update is cut into micro-batches of about equal size: packing changes neither its sentences nor their order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from nmtkit.data.batch import Batch, Movable
from nmtkit.data.mixture import MicroBatch
from nmtkit.data.padding import Lengths
from nmtkit.text.vocabulary import BOS, PAD

_STEP = 128  # tokens of a side are a multiple of this number, so that few shapes occur
SideLengths = NDArray[np.int32]
LengthsOf = Callable[[MicroBatch], tuple[SideLengths, SideLengths]]


@dataclass(frozen=True)
class PackedBatch(Movable):
    """A micro-batch of N sentence pairs without padding between them. tgt_in is tgt_out shifted right after BOS (§3.1).

    Each side ends with a filler of 1 to 128 PADs, a separate sentence without a loss. Lengths count EOS.
    """

    src: Tensor  # (S,) int64
    source_lengths: Tensor  # (N,), without the filler's
    tgt_in: Tensor  # (T,)
    tgt_out: Tensor  # (T,)
    target_lengths: Tensor  # (N,)
    longest: tuple[int, int]  # tokens of the longest sentence of each side
    source_tokens: int  # without the filler, like the next
    target_tokens: int

    @classmethod
    def of(
        cls, src: Tensor, source_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, target_lengths: Tensor
    ) -> "PackedBatch":
        """Create a batch on the CPU from src (S,), tgt_in and tgt_out (T,) with lengths (N,), and append fillers."""
        longest = int(source_lengths.max()), int(target_lengths.max())
        src, tgt_in, tgt_out = (
            F.pad(side, (0, packed_size(len(side)) - len(side)), value=PAD) for side in (src, tgt_in, tgt_out)
        )
        tokens = int(source_lengths.sum()), int(target_lengths.sum())
        return cls(src, source_lengths, tgt_in, tgt_out, target_lengths, longest, *tokens)

    @property
    def sentences(self) -> int:
        """The number of sentence pairs, N."""
        return len(self.source_lengths)

    @property
    def padded_tokens(self) -> int:
        """The number of tokens of both sides, including fillers."""
        return self.src.numel() + self.tgt_out.numel()

    def parts_within(self, max_tokens: int) -> Iterator["PackedBatch"]:
        """Divide the batch into parts with at most `max_tokens` tokens per side each, without fillers, or one pair."""
        if max(self.source_tokens, self.target_tokens) <= max_tokens:
            yield self
            return
        lengths = self.source_lengths.numpy(), self.target_lengths.numpy()
        yield from map(self.rows, _cut(*lengths, max_tokens))

    def rows(self, rows: slice) -> "PackedBatch":
        """Return a batch of the sentence pairs with these numbers."""
        source, target = (_tokens_of(lengths, rows) for lengths in (self.source_lengths, self.target_lengths))
        return PackedBatch.of(
            self.src[source],
            self.source_lengths[rows],
            self.tgt_in[target],
            self.tgt_out[target],
            self.target_lengths[rows],
        )

    def without_source_end(self) -> "PackedBatch":
        """Return a batch without the EOS of each source that has other tokens."""
        is_longer = self.source_lengths > 1
        ends = (self.source_lengths.cumsum(0) - 1)[is_longer]
        kept = torch.ones_like(self.src, dtype=torch.bool).index_fill_(0, ends, False)
        lengths = self.source_lengths - is_longer.long()
        tokens = self.source_tokens - len(ends)
        src = F.pad(self.src[kept][:tokens], (0, packed_size(tokens) - tokens), value=PAD)
        longest = max(1, self.longest[0] - 1), self.longest[1]
        return replace(self, src=src, source_lengths=lengths, source_tokens=tokens, longest=longest)


MicroBatchTensors = Batch | PackedBatch
Share = Sequence[tuple[int, Sequence[MicroBatchTensors]]]  #: the parts of micro-batches, each with its number


def packed_size(tokens: int) -> int:
    """Return the size of a side with `tokens` tokens, including its filler of at least one token."""
    return (tokens // _STEP + 1) * _STEP


def make_packed_batch(
    source: NDArray[np.generic], source_lengths: Lengths, target: NDArray[np.generic], target_lengths: Lengths
) -> PackedBatch:
    """Create a packed batch from the concatenated tokens of each side and its sentences' lengths (N,) with EOS."""
    tgt_out = target.astype(np.int64)
    tgt_in = np.roll(tgt_out, 1)  # EOS is never an input: BOS replaces it
    lengths = target_lengths.astype(np.int64)
    tgt_in[np.cumsum(lengths) - lengths] = BOS
    sides = source.astype(np.int64), source_lengths.astype(np.int64), tgt_in, tgt_out, lengths
    return PackedBatch.of(*map(torch.from_numpy, sides))


def pack_micro_batches(micro_batches: Sequence[MicroBatch], lengths_of: LengthsOf, max_tokens: int) -> list[MicroBatch]:
    """Divide the sentence pairs of an update into packed micro-batches of about equal sizes. Each is from one corpus
    and epoch, with at most `max_tokens` tokens per side unless it is a single pair."""
    packed = []
    ordered = sorted(micro_batches, key=lambda each: each[:2])  # stable
    for (corpus, epoch), group in groupby(ordered, key=lambda each: each[:2]):
        together = MicroBatch(corpus, epoch, np.concatenate([each.pairs for each in group]))
        parts = _cut(*lengths_of(together), max_tokens)
        packed += [MicroBatch(corpus, epoch, together.pairs[part]) for part in parts]
    return packed


def _cut(source: SideLengths, target: SideLengths, max_tokens: int) -> Iterator[slice]:
    """Yield slices of consecutive sentence pairs with about equal numbers of tokens on the longer side."""
    sums = np.cumsum(source, dtype=np.int64), np.cumsum(target, dtype=np.int64)
    longer = max(sums, key=lambda each: int(each[-1]))
    total = int(longer[-1])
    size = -(-total // -(-total // max_tokens))
    begin = 0
    while begin < len(source):
        done = [int(each[begin - 1]) if begin else 0 for each in sums]
        fitting = (each.searchsorted(before + max_tokens, "right") for each, before in zip(sums, done, strict=True))
        full = int(longer.searchsorted((int(longer[begin - 1]) if begin else 0) + size)) + 1
        end = max(begin + 1, min(full, *map(int, fitting)))
        yield slice(begin, end)
        begin = end


def _tokens_of(lengths: Tensor, rows: slice) -> slice:
    begin = int(lengths[: rows.start].sum())
    return slice(begin, begin + int(lengths[rows].sum()))
