"""A pseudorandom permutation of range(size), computed from a key without storing it.

It is a generalized Feistel network: i is written as (left, right), and each round adds a hash of one half to the other,
modulo its base. Every round is invertible, so the network is a permutation (Black and Rogaway 2002, "Ciphers with
Arbitrary Finite Domains").
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # four already look random without the key (Luby and Rackoff 1988)


def permute(positions: NDArray[np.int64], size: int, key: Sequence[int]) -> NDArray[np.int64]:
    """Return the values (n,) at `positions` (n,) of the permutation of range(size) with this key."""
    rows = math.isqrt(max(0, size - 1)) + 1
    columns = -(-size // rows)
    round_keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    values = positions.astype(np.uint64)
    outside: NDArray[np.bool_] = np.ones(len(values), np.bool_)
    while outside.any():  # cycle walking: rows · columns can exceed size by less than a row
        values[outside] = _encipher(values[outside], np.uint64(rows), np.uint64(columns), round_keys)
        outside = values >= size
    return values.astype(np.int64)


def _encipher(
    values: NDArray[np.uint64], rows: np.uint64, columns: np.uint64, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Apply the Feistel network to values (n,) below rows · columns, and return (n,)."""
    left, right = np.divmod(values, columns)
    for left_key, right_key in round_keys.reshape(-1, 2):
        left = (left + _hash(right ^ left_key) % rows) % rows
        right = (right + _hash(left ^ right_key) % columns) % columns
    values = left * columns + right
    return values


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash values (n,) with the finalizer of SplitMix64, so that each result bit depends on each input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
