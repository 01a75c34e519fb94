"""The plan of a mixture: shares of the corpora, their epochs, and positions from which it continues."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from nmtkit.data import batching
from nmtkit.data.batching import START, BatchSampler
from nmtkit.data.mixture import MicroBatch, MixedUpdate, Mixture, seed_of

BATCH_TOKENS, MAX_TOKENS = 4000, 1000
SIZES = (3000, 700, 40)  # pairs
SHARES = (0.5, 0.3, 0.2)


def lengths(pairs: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    random = np.random.default_rng(pairs)
    target = random.integers(2, 60, pairs, dtype=np.int32)
    return np.clip(target + random.integers(-3, 4, pairs, dtype=np.int32), 1, None).astype(np.int32), target


CORPORA = [lengths(pairs) for pairs in SIZES]


def mixture(sizes: Sequence[int] = SIZES, shares: Sequence[float] = SHARES, seed: int = 1) -> Mixture:
    corpora = [lengths(pairs) for pairs in sizes]
    return Mixture(corpora, shares, BATCH_TOKENS, MAX_TOKENS, seed)


def plan(updates: Iterator[MixedUpdate], count: int) -> list[MixedUpdate]:
    return list(itertools.islice(updates, count))


def target_tokens(micro_batches: Sequence[MicroBatch]) -> list[int]:
    """The target tokens of each corpus."""
    tokens = [0] * len(CORPORA)
    for corpus, _, pairs in micro_batches:
        tokens[corpus] += int(CORPORA[corpus][1][pairs].sum())
    return tokens


def as_lists(update: MixedUpdate) -> list[tuple[int, int, list[int]]]:
    return [(corpus, epoch, pairs.tolist()) for corpus, epoch, pairs in update.micro_batches]


def test_one_corpus_has_the_updates_of_its_sampler() -> None:
    sampler = BatchSampler(*CORPORA[0], BATCH_TOKENS, MAX_TOKENS, seed=1)
    alone = Mixture(CORPORA[:1], [1.0], BATCH_TOKENS, MAX_TOKENS, seed=1)
    updates = itertools.chain.from_iterable(sampler.plans(START))
    for mixed, update in zip(plan(alone.updates(), 100), updates, strict=False):
        assert as_lists(mixed) == [(0, update.epoch, pairs.tolist()) for pairs in update.micro_batches]
        assert mixed.next_position == (update.next_position,)
        assert (mixed.epoch, mixed.updates_per_epoch) == (update.epoch, update.updates_per_epoch)


def test_the_shares_are_kept_after_every_update_to_less_than_a_micro_batch() -> None:
    drawn, largest = np.zeros(len(SIZES)), 0
    for update in plan(mixture().updates(), 300):
        drawn += target_tokens(update.micro_batches)
        largest = max(largest, *(max(target_tokens([batch])) for batch in update.micro_batches))
        for corpus in (1, 2):
            ahead = drawn[corpus] - drawn[0] * SHARES[corpus] / SHARES[0]
            assert -1e-6 < ahead < largest
            assert ahead == pytest.approx(update.next_position[corpus].ahead, abs=1e-6)
    assert drawn / drawn.sum() == pytest.approx(SHARES, abs=2e-3)


def test_a_micro_batch_has_pairs_of_one_corpus_within_its_share_of_the_limits() -> None:
    for update in plan(mixture().updates(), 100):
        for corpus, _, pairs in update.micro_batches:
            source, target = (side[pairs] for side in CORPORA[corpus])
            assert len(pairs) * int(source.max()) <= MAX_TOKENS
            assert len(pairs) * int(target.max()) <= min(MAX_TOKENS, round(SHARES[corpus] * BATCH_TOKENS))


def test_each_corpus_has_every_pair_once_in_each_of_its_own_epochs() -> None:
    seen: dict[tuple[int, int], list[int]] = {}
    for update in plan(mixture().updates(), 300):
        for corpus, epoch, pairs in update.micro_batches:
            seen.setdefault((corpus, epoch), []).extend(pairs.tolist())
    epochs = [max(epoch for corpus, epoch in seen if corpus == number) for number in range(3)]
    assert epochs[0] < epochs[1] < epochs[2]
    for corpus, last in enumerate(epochs):
        assert last > 2
        for epoch in range(1, last):  # the last one is incomplete
            assert sorted(seen[corpus, epoch]) == list(range(SIZES[corpus]))


@pytest.mark.parametrize("done", [1, 7, 30, 31, 123])
def test_a_plan_continues_from_any_position(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PART", 1000)  # three parts an epoch of the first corpus
    expected = plan(mixture().updates(), done + 40)
    position = expected[done - 1].next_position
    continued = plan(mixture().updates(position), 40)
    assert [as_lists(update) for update in continued] == [as_lists(update) for update in expected[done:]]
    assert [update.next_position for update in continued] == [update.next_position for update in expected[done:]]


def test_the_plan_is_a_function_of_the_seed() -> None:
    first, again, other = (plan(mixture(seed=seed).updates(), 10) for seed in (1, 1, 2))
    assert [as_lists(update) for update in first] == [as_lists(update) for update in again]
    assert [as_lists(update) for update in first] != [as_lists(update) for update in other]


def test_parallel_corpora_are_read_in_different_orders() -> None:
    assert len({seed_of(seed, corpus) for seed in (0, 1) for corpus in range(20)}) == 40
    twins = Mixture([CORPORA[1], CORPORA[1]], (0.5, 0.5), BATCH_TOKENS, MAX_TOKENS, seed=1)
    first, second = ([pairs.tolist() for _, _, pairs in batches] for batches in by_corpus(twins))
    assert sorted(itertools.chain(*first)) != sorted(itertools.chain(*second))


def by_corpus(twins: Mixture) -> list[list[MicroBatch]]:
    """The micro-batches of each of two corpora in the first five updates."""
    micro_batches = [each for update in plan(twins.updates(), 5) for each in update.micro_batches]
    return [[each for each in micro_batches if each.corpus == corpus] for corpus in (0, 1)]
