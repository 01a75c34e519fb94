"""Batches: every sentence once an epoch, within bounds, with little padding, and the same whenever asked again."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from nmtkit.data import batching
from nmtkit.data.batching import START, BatchSampler, DataPosition, Update, batch_by_tokens

Lengths = NDArray[np.int32]


def captions(pairs: int, seed: int = 0) -> tuple[Lengths, Lengths]:
    """Lengths like those of Multi30k: about 15 pieces a side, a long tail, the sides alike."""
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(9, 1.7, pairs), 4, 60).round()
    target = np.clip(source * random.normal(1.05, 0.15, pairs), 4, 70).round()
    return source.astype(np.int32), target.astype(np.int32)


SOURCE, TARGET = captions(10_000)


def sampler(batch_tokens: int = 4000, max_tokens: int = 1000, seed: int = 1) -> BatchSampler:
    return BatchSampler(SOURCE, TARGET, batch_tokens, max_tokens, seed)


def updates_of(made: BatchSampler, position: DataPosition = START) -> Iterator[Update]:
    return itertools.chain.from_iterable(made.plans(position))


def epoch_of(made: BatchSampler, epoch: int) -> Iterator[Update]:
    return itertools.takewhile(lambda update: update.epoch == epoch, updates_of(made, DataPosition(epoch)))


def flat(updates: Iterable[Update]) -> list[list[int]]:
    return [micro.tolist() for update in updates for micro in update.micro_batches]


def padded(lengths: Lengths, micro: NDArray[np.int64]) -> int:
    return int(lengths[micro].max()) * len(micro)


@pytest.mark.parametrize(("batch_tokens", "max_tokens"), [(4000, 1000), (1000, 4000), (25_000, 4096), (200, 80)])
def test_an_epoch_contains_every_sentence_once_within_the_limits(batch_tokens: int, max_tokens: int) -> None:
    updates = list(epoch_of(sampler(batch_tokens, max_tokens), 3))
    assert sorted(itertools.chain(*flat(updates))) == list(range(len(SOURCE)))
    assert [update.next_position for update in updates] == [
        *(DataPosition(3, 0, n) for n in range(1, len(updates))),
        DataPosition(4),
    ]
    assert {(update.epoch, update.updates_per_epoch) for update in updates} == {(3, len(updates))}
    for update in updates:
        for micro in update.micro_batches:
            assert padded(SOURCE, micro) <= max_tokens
            assert padded(TARGET, micro) <= max_tokens
            assert padded(TARGET, micro) <= batch_tokens or len(micro) == 1


@pytest.mark.parametrize(("batch_tokens", "max_tokens"), [(4000, 1000), (4000, 4000), (25_000, 4096), (8000, 1500)])
def test_updates_are_close_to_the_requested_size(batch_tokens: int, max_tokens: int) -> None:
    updates = list(epoch_of(sampler(batch_tokens, max_tokens), 1))
    tokens = [sum(int(TARGET[micro].sum()) for micro in update.micro_batches) for update in updates]
    for size in tokens[:-1]:  # the last takes what is left
        assert abs(size - batch_tokens) <= min(batch_tokens, max_tokens) / 2
    assert np.mean(tokens[:-1]) == pytest.approx(batch_tokens, rel=0.05 if max_tokens < batch_tokens else 0.1)


@pytest.mark.parametrize(("pairs", "max_tokens"), [(29_000, 4096), (29_000, 2048), (10_000, 1500)])
def test_padding_stays_below_6_percent_on_lengths_like_those_of_captions(pairs: int, max_tokens: int) -> None:
    source, target = captions(pairs, seed=5)
    updates = list(epoch_of(BatchSampler(source, target, 8000, max_tokens, seed=1), 1))
    whole = sum(padded(side, micro) for u in updates for micro in u.micro_batches for side in (source, target))
    assert 1 - (source.sum() + target.sum()) / whole < 0.06


def test_batches_are_a_pure_function_of_seed_and_epoch() -> None:
    made = sampler()
    list(epoch_of(made, 1))
    assert flat(epoch_of(made, 2)) == flat(epoch_of(sampler(), 2))
    assert flat(epoch_of(made, 2)) != flat(epoch_of(made, 3))
    assert flat(epoch_of(made, 2)) != flat(epoch_of(sampler(seed=2), 2))


def repeated_mates(first: list[list[int]], second: list[list[int]]) -> float:
    """Of the pairs of sentences that share a micro-batch in `first`, the fraction that does so in `second` too."""
    pairs = sum(len(micro) * (len(micro) - 1) for micro in first)
    place = {sentence: number for number, micro in enumerate(second) for sentence in micro}
    together = Counter((number, place[sentence]) for number, micro in enumerate(first) for sentence in micro)
    return sum(count * (count - 1) for count in together.values()) / pairs


@pytest.mark.parametrize(
    ("pairs", "max_tokens", "bound"), [(29_000, 4096, 0.25), (29_000, 1024, 0.15), (5000, 4096, 0.3)]
)
def test_few_sentences_of_a_small_corpus_share_a_batch_again_in_the_next_epoch(
    pairs: int, max_tokens: int, bound: float
) -> None:
    made = BatchSampler(*captions(pairs, seed=5), 25_000, max_tokens, seed=1)
    epochs = [flat(epoch_of(made, epoch)) for epoch in (1, 2, 3, 4)]
    for first, second in itertools.pairwise(epochs):
        assert repeated_mates(first, second) < bound


@pytest.mark.parametrize("pairs", [200, 10_000])
def test_every_epoch_has_an_order_of_its_own(pairs: int, parts: int) -> None:
    made = BatchSampler(SOURCE[:pairs], TARGET[:pairs], 400, 200, seed=1)
    orders = [flat(epoch_of(made, epoch)) for epoch in range(1, 7)]
    for one, other in itertools.combinations(orders, 2):
        assert one != other
        assert {frozenset(micro) for micro in one} != {frozenset(micro) for micro in other}
        in_order = [np.array(list(itertools.chain(*order))) for order in (one, other)]
        assert np.mean(in_order[0] == in_order[1]) < 0.05  # not the same micro-batches with a few swapped


@pytest.fixture(params=[batching.PART, 5000, 3000, 700])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """In how many parts an epoch is planned."""
    monkeypatch.setattr(batching, "PART", request.param)
    return -(-len(SOURCE) // int(request.param))


def test_the_sampler_resumes_from_any_position(parts: int) -> None:
    straight = list(itertools.islice(updates_of(sampler(2000)), 200))
    assert sorted(itertools.chain(*flat(update for update in straight if update.epoch == 1))) == list(
        range(len(SOURCE))
    )
    assert {update.next_position.part for update in straight} == set(range(parts))
    for done in range(0, len(straight), 7):
        place = straight[done - 1].next_position if done else START
        resumed = itertools.islice(updates_of(sampler(2000), place), len(straight) - done)
        assert flat(resumed) == flat(straight[done:])


def test_every_part_samples_the_whole_corpus_evenly(parts: int) -> None:
    updates = list(epoch_of(sampler(), 2))
    assert sorted(itertools.chain(*flat(updates))) == list(range(len(SOURCE)))
    assert all(abs(update.updates_per_epoch - len(updates)) <= parts for update in updates)  # estimated from each part
    begun = [DataPosition(2), *(update.next_position for update in updates)]
    for part in range(parts):
        micro = [
            micro
            for place, update in zip(begun, updates, strict=False)
            if place.part == part
            for micro in flat([update])
        ]
        sentences = np.array(list(itertools.chain(*micro)))
        assert abs(len(sentences) - len(SOURCE) / parts) <= 1
        spread = 1 / np.sqrt(12 * len(sentences))  # of the mean of so many places drawn evenly
        assert abs(sentences.mean() / len(SOURCE) - 0.5) < 4 * spread


def test_planning_reads_the_lengths_of_one_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PART", 1000)
    asked = []

    class Asked:
        def __len__(self) -> int:
            return 1_000_000_000

        def __getitem__(self, sentences: NDArray[np.int64], /) -> Lengths:
            asked.append(len(sentences))
            return TARGET[sentences % len(TARGET)]

    update = next(updates_of(BatchSampler(Asked(), Asked(), 4000, 1000, seed=1), DataPosition(7, 654_321, 2)))
    assert update.next_position == DataPosition(7, 654_321, 3)
    assert asked == [1000, 1000]


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_a_tiny_corpus_gives_one_update_with_all_sentences(pairs: int) -> None:
    made = BatchSampler(SOURCE[:pairs], TARGET[:pairs], 25_000, 4096, seed=1)
    (update,) = epoch_of(made, 1)
    assert update.next_position == DataPosition(2)
    assert sorted(itertools.chain(*flat([update]))) == list(range(pairs))


@pytest.mark.parametrize(("source", "target"), [(10, 5), (5, 10)])
@pytest.mark.parametrize(("tokens", "sizes"), [(50, [5]), (49, [4, 1])])
def test_a_micro_batch_fills_max_tokens_on_either_side_exactly(
    source: int, target: int, tokens: int, sizes: list[int]
) -> None:
    sources, targets = (np.full(5, length, np.int32) for length in (source, target))
    assert [len(batch) for batch in batch_by_tokens(np.arange(5), sources, targets, tokens, 1000)] == sizes


def test_batching_by_tokens_keeps_the_order_and_puts_overlong_sentences_in_their_own_batch() -> None:
    source = np.array([50, 2, 2, 2, 300, 2], np.int32)
    target = np.array([2, 2, 2, 3, 4, 500], np.int32)
    batches = batch_by_tokens(np.arange(6), source, target, max_tokens=100, target_tokens=60)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4], [5]]
