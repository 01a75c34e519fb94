"""A micro-batch as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.corpus import Split
from nmtkit.vocab import BOS, PAD


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, PAD at the ends of rows. tgt_in is tgt_out shifted right by one, BOS first (§3.1)."""

    src: Tensor  # (B, S)
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (B, T)
    source_tokens: int  # without padding, EOS counted
    target_tokens: int

    @property
    def padded_tokens(self) -> int:
        """Tokens of both sides with their padding: what the batch costs to compute."""
        return self.src.numel() + self.tgt_out.numel()

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        src, tgt_in, tgt_out = (t.to(device, non_blocking=True) for t in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.source_tokens, self.target_tokens)


def collate(split: Split, indices: NDArray[np.int64]) -> Batch:
    """The pairs of a split with these indices as one batch."""
    sources = [split.source[int(i)] for i in indices]
    targets = [split.target[int(i)] for i in indices]
    tgt_out = pad(targets)
    tgt_in = torch.full_like(tgt_out, PAD)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    for row, target in enumerate(targets):
        tgt_in[row, len(target) :] = PAD  # the EOS of a shorter target is never an input
    tgt_in[:, 0] = BOS
    return Batch(pad(sources), tgt_in, tgt_out, sum(map(len, sources)), sum(map(len, targets)))


def pad(sequences: Sequence[Sequence[int] | NDArray[np.generic]]) -> Tensor:
    """Sequences of ids as rows of one tensor (B, longest), filled with PAD."""
    rows = np.full((len(sequences), max(map(len, sequences))), PAD, dtype=np.int64)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(rows)
