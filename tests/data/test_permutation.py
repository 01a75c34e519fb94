"""The computed order: each thing once, and as if drawn."""

import itertools
from collections import Counter

import numpy as np
import pytest

from nmtkit.data.permutation import permute


@pytest.mark.parametrize("size", [1, 2, 3, 7, 36, 100, 101, 4097])
def test_the_result_is_a_permutation(size: int) -> None:
    for key in ((1, 1), (1, 2), (2**63 - 1, 10**6)):
        assert sorted(permute(np.arange(size), size, key)) == list(range(size))


def test_positions_can_be_permuted_individually() -> None:
    whole = permute(np.arange(12_345), 12_345, (1, 2))
    places = np.array([12_344, 0, 77, 0])
    assert permute(places, 12_345, (1, 2)).tolist() == whole[places].tolist()
    assert permute(np.arange(0), 12_345, (1, 2)).tolist() == []


def test_different_keys_give_different_orders() -> None:
    orders = [permute(np.arange(10_000), 10_000, key).tolist() for key in ((1, 1), (1, 2), (2, 1))]
    for one, other in itertools.combinations(orders, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10  # 1 is to be expected


def test_all_orders_of_a_few_items_are_equally_likely() -> None:
    counts = Counter(tuple(permute(np.arange(4), 4, (7, epoch)).tolist()) for epoch in range(4800))
    assert len(counts) == 24
    chi_squared = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert chi_squared < 52  # 23 degrees of freedom: more than this once in 2,000 times


def test_neighbours_are_scattered() -> None:
    order = permute(np.arange(100_000), 100_000, (3, 4))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.015
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 0.015
    distances = np.abs(np.diff(order)) / 100_000
    assert np.mean(distances) == pytest.approx(1 / 3, rel=0.02)  # of two even draws


def test_sizes_beyond_32_bits_work() -> None:
    size = 10**13
    order = permute(np.arange(size - 1000, size), size, (1, 1))
    assert len(set(order.tolist())) == 1000
    assert order.min() >= 0
    assert order.max() < size
    assert order.mean() / size == pytest.approx(0.5, abs=0.04)
