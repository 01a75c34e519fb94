"""A random order of any number of things in no memory: where each stands is computed from a key.

A Feistel network over pairs of digits: i is written as (left, right), and each round adds to the one a hash of the
other, modulo its base. Each round can be undone, so no two places share a thing (Black and Rogaway 2002, "Ciphers with
arbitrary finite domains").
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # of four on, without the key such a permutation is told from none (Luby and Rackoff 1988)


def permuted(places: NDArray[np.int64], size: int, key: Sequence[int]) -> NDArray[np.int64]:
    """What stands at these places of the random order of range(size) that belongs to a key."""
    rows = math.isqrt(max(0, size - 1)) + 1
    columns = -(-size // rows)
    secrets = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    things = places.astype(np.uint64)
    outside: NDArray[np.bool_] = np.ones(len(things), np.bool_)
    while outside.any():  # the rectangle may be larger, by less than a row: walk on until back inside
        things[outside] = _encipher(things[outside], np.uint64(rows), np.uint64(columns), secrets)
        outside = things >= size
    return things.astype(np.int64)


def _encipher(
    things: NDArray[np.uint64], rows: np.uint64, columns: np.uint64, secrets: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """One pass of the network over numbers below rows · columns."""
    left, right = np.divmod(things, columns)
    for secret_left, secret_right in secrets.reshape(-1, 2):
        left = (left + _hash(right ^ secret_left) % rows) % rows
        right = (right + _hash(left ^ secret_right) % columns) % columns
    things = left * columns + right
    return things


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every bit of the result depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
