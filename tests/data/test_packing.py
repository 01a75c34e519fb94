"""Packed micro-batches: every pair once, within the limit, in the order of the plan."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nmtkit.data.batch import make_batch
from nmtkit.data.mixture import MicroBatch
from nmtkit.data.packing import PackedBatch, make_packed_batch, pack_micro_batches
from nmtkit.text.vocabulary import BOS, EOS, PAD

Side = NDArray[np.int32]

RANDOM = np.random.default_rng(3)
SOURCE = RANDOM.integers(5, 40, 500).astype(np.int32)
TARGET = SOURCE + RANDOM.integers(-4, 5, 500).astype(np.int32)


def lengths_of(micro_batch: MicroBatch) -> tuple[Side, Side]:
    return SOURCE[micro_batch.pairs], TARGET[micro_batch.pairs]


def tokens_of(micro_batch: MicroBatch) -> tuple[int, int]:
    source, target = lengths_of(micro_batch)
    return int(source.sum()), int(target.sum())


def plan(*corpora: int) -> list[MicroBatch]:
    """Random micro-batches, each of the corpus with that number."""
    parts = np.array_split(RANDOM.permutation(500), len(corpora))
    return [MicroBatch(corpus, 1 + corpus, pairs) for corpus, pairs in zip(corpora, parts, strict=True)]


def make(source: list[list[int]], target: list[list[int]]) -> PackedBatch:
    """A batch of these sentences."""
    sides = (
        (np.concatenate(side).astype(np.uint16), np.array([len(ids) for ids in side], np.int32))
        for side in (source, target)
    )
    return make_packed_batch(*next(sides), *next(sides))


@pytest.mark.parametrize("max_tokens", [43, 100, 1000, 5000, 1_000_000])
def test_packing_keeps_every_pair_once_and_its_order_within_the_limit(max_tokens: int) -> None:
    planned = plan(0, 0, 0, 0)
    packed = pack_micro_batches(planned, lengths_of, max_tokens)
    before, after = (np.concatenate([each.pairs for each in batches]) for batches in (planned, packed))
    assert np.array_equal(before, after)
    assert all(max(tokens_of(each)) <= max_tokens for each in packed)


@pytest.mark.parametrize("max_tokens", [1000, 3000, 9000])
def test_packed_micro_batches_are_few_and_of_about_equal_size(max_tokens: int) -> None:
    packed = pack_micro_batches(plan(0, 0, 0), lengths_of, max_tokens)
    sides = list(zip(*map(tokens_of, packed), strict=True))
    longer = max(sides, key=sum)
    assert len(packed) <= sum(longer) / max_tokens * 1.2 + 1
    assert max(longer[:-1], default=0) <= min(longer[:-1], default=0) + 80


def test_a_packed_micro_batch_has_pairs_of_one_corpus_and_epoch() -> None:
    planned = plan(0, 1, 0, 2, 1)
    packed = pack_micro_batches(planned, lengths_of, 1_000_000)
    assert [each[:2] for each in packed] == [(0, 1), (1, 2), (2, 3)]
    for corpus, each in enumerate(packed):
        of_corpus = np.concatenate([other.pairs for other in planned if other.corpus == corpus])
        assert np.array_equal(each.pairs, of_corpus)


def test_a_pair_longer_than_the_limit_is_alone() -> None:
    packed = pack_micro_batches(plan(0), lengths_of, 1)
    assert [len(each.pairs) for each in packed] == [1] * 500


def test_a_packed_batch_has_the_tokens_of_a_padded_one_and_ends_with_a_filler() -> None:
    source, target = [[5, 6, EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS]]
    batch = make(source, target)
    assert batch.src.tolist() == [5, 6, EOS, 7, EOS] + [PAD] * 123
    assert batch.tgt_in.tolist() == [BOS, 8, BOS, 9, 10, 11] + [PAD] * 122
    assert batch.tgt_out.tolist() == [8, EOS, 9, 10, 11, EOS] + [PAD] * 122
    assert (batch.source_tokens, batch.target_tokens, batch.sentences) == (5, 6, 2)
    assert batch.longest == (3, 4)
    assert batch.padded_tokens == 256
    lengths = (np.array(side, np.int32) for side in ([3, 2], [2, 4]))
    padded = make_batch(np.concatenate(source), next(lengths), np.concatenate(target), next(lengths))
    assert torch.equal(padded.src[padded.src != PAD], batch.src[:5])
    assert torch.equal(padded.tgt_in[padded.tgt_out != PAD], batch.tgt_in[:6])


def test_rows_of_a_packed_batch_are_a_batch_of_these_pairs() -> None:
    source, target = [[5, 6, EOS], [7, EOS], [4, EOS]], [[8, EOS], [9, 10, EOS], [11, EOS]]
    rows, expected = make(source, target).rows(slice(1, 3)), make(source[1:], target[1:])
    for name in ("src", "source_lengths", "tgt_in", "tgt_out", "target_lengths"):
        assert torch.equal(getattr(rows, name), getattr(expected, name)), name
    assert (rows.longest, rows.source_tokens, rows.target_tokens) == ((2, 3), 4, 5)
