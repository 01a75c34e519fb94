"""Pads sentences to one array."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nmtkit.text.vocabulary import PAD

Ints = NDArray[np.int64]
Lengths = NDArray[np.int32] | Ints


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Pad sequences of ids to one array (B, longest), and return it with their lengths (B,)."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    return pad_rows(np.fromiter(chain.from_iterable(sequences), np.int64), lengths), lengths


def pad_rows(tokens: NDArray[np.generic], lengths: Lengths) -> Ints:
    """Pad concatenated sentences to an array (B, longest)."""
    rows = np.full((len(lengths), lengths.max()), PAD, dtype=np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = tokens
    return rows
