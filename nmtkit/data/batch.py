"""A micro-batch as tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Split
from nmtkit.vocab import BOS, PAD

Lengths = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, PAD at the ends of rows. tgt_in is tgt_out shifted right by one, BOS first (§3.1).

    Lengths count EOS. `real` are the places of tokens in the flattened tgt_out: known from the start, since a GPU that
    is asked for them lets the host wait.
    """

    src: Tensor  # (B, S)
    source_lengths: Tensor  # (B,)
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (B, T)
    target_lengths: Tensor  # (B,)
    real: Tensor  # (target_tokens,)
    source_tokens: int  # without padding, EOS counted

    @classmethod
    def of(
        cls, src: Tensor, source_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, target_lengths: Tensor
    ) -> "Batch":
        """The batch of these rows, in main memory."""
        real = (torch.arange(tgt_out.size(1)) < target_lengths.unsqueeze(1)).flatten().nonzero().squeeze(1)
        return cls(src, source_lengths, tgt_in, tgt_out, target_lengths, real, int(source_lengths.sum()))

    @classmethod
    def unpadded(cls, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> "Batch":
        """The batch of these rows, each of them a whole sentence."""
        source_lengths, target_lengths = (torch.full((len(rows),), rows.size(1)) for rows in (src, tgt_out))
        return cls.of(src, source_lengths, tgt_in, tgt_out, target_lengths)

    @property
    def target_tokens(self) -> int:
        """Without padding, EOS counted."""
        return self.real.numel()

    @property
    def padded_tokens(self) -> int:
        """Tokens of both sides with their padding: what the batch costs to compute."""
        return self.src.numel() + self.tgt_out.numel()

    def rows(self, rows: slice) -> "Batch":
        """Some of the pairs, with the padding that they have."""
        return Batch.of(
            self.src[rows],
            self.source_lengths[rows],
            self.tgt_in[rows],
            self.tgt_out[rows],
            self.target_lengths[rows],
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """The same batch in memory that a GPU can copy from while the host goes on."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = (self.src, self.source_lengths, self.tgt_in, self.tgt_out, self.target_lengths, self.real)
        src, source_lengths, tgt_in, tgt_out, target_lengths, real = map(change, tensors)
        return Batch(src, source_lengths, tgt_in, tgt_out, target_lengths, real, self.source_tokens)


def collate(split: Split, indices: Indices) -> Batch:
    """The pairs of a split with these indices as one batch."""
    return make_batch(*split.source.gather(indices), *split.target.gather(indices))


def make_batch(
    source: NDArray[np.generic], source_lengths: Lengths, target: NDArray[np.generic], target_lengths: Lengths
) -> Batch:
    """A batch of pairs: the tokens of each side, one sentence after the other, and the lengths of its sentences."""
    tgt_out = _lay_out(target, target_lengths)
    tgt_in = np.full_like(tgt_out, PAD)
    tgt_in[:, 0] = BOS
    follows = np.arange(1, tgt_out.shape[1]) < target_lengths[:, None]  # the EOS of a shorter target is never an input
    tgt_in[:, 1:][follows] = tgt_out[:, :-1][follows]
    sides = (
        _lay_out(source, source_lengths),
        source_lengths.astype(np.int64),
        tgt_in,
        tgt_out,
        target_lengths.astype(np.int64),
    )
    return Batch.of(*map(torch.from_numpy, sides))


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Sequences of ids as rows of one tensor (B, longest), filled with PAD, and their lengths (B,)."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    rows = _lay_out(np.fromiter(chain.from_iterable(sequences), np.int64), lengths)
    return torch.from_numpy(rows), torch.from_numpy(lengths)


def _lay_out(tokens: NDArray[np.generic], lengths: Lengths) -> NDArray[np.int64]:
    """Sentences that stand one after the other, as rows of (B, longest) filled with PAD."""
    rows = np.full((len(lengths), lengths.max()), PAD, dtype=np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = tokens
    return rows
