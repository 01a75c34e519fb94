"""Mixtures: combines sentence pairs of several corpora into updates.

The first corpus leads: each update contains one of its updates, planned for its share of the target tokens. Every
other corpus adds whole micro-batches until it has its share of all target tokens so far. An exhausted corpus begins its
next epoch. Lengths, shares and seed determine the plan, and a position is enough to continue it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from nmtkit.data.batching import START, BatchSampler, DataPosition, Lengths, Update
from nmtkit.data.binary import Indices

Plans = Iterator[list[Update]]


class MicroBatch(NamedTuple):
    """Sentence pairs of one corpus that are processed together."""

    corpus: int  # its number in the mixture, from 0
    epoch: int  # of that corpus
    pairs: Indices


@dataclass(frozen=True)
class MixedUpdate:
    """The micro-batches of one update."""

    epoch: int  # of the first corpus, like updates_per_epoch
    next_position: tuple[DataPosition, ...]  # in each corpus, after this update
    updates_per_epoch: int  # as in `Update`
    micro_batches: list[MicroBatch]


class Mixture:
    """Combines the sentence pairs of several corpora into updates of about `batch_tokens` target tokens.

    `lengths` are source and target lengths for each corpus, and `shares` the shares of target tokens, which sum to 1.
    After any update, each other corpus has its share relative to the first, or at most its largest micro-batch more. A
    micro-batch has at most `max_tokens` padded tokens per side and its corpus's share of `batch_tokens`, or one pair.
    """

    def __init__(
        self,
        lengths: Sequence[tuple[Lengths, Lengths]],
        shares: Sequence[float],
        batch_tokens: int,
        max_tokens: int,
        seed: int,
    ) -> None:
        self.shares = shares
        self.samplers = [
            BatchSampler(
                *sides,
                batch_tokens=max(1, round(share * batch_tokens)),
                max_tokens=max_tokens,
                seed=seed_of(seed, corpus),
                is_grouped=corpus == 0,
            )
            for corpus, (sides, share) in enumerate(zip(lengths, shares, strict=True))
        ]

    def updates(
        self, position: Sequence[DataPosition] = (START,), prefetch: Callable[[Plans], Plans] = iter
    ) -> Iterator[MixedUpdate]:
        """Yield updates endlessly, starting at `position`: a place in each corpus, or in the first ones. `prefetch`
        wraps an iterator of plans to work ahead."""
        first, *samplers = self.samplers
        begin, *places = list(position) + [START] * (len(self.samplers) - len(position))
        others = [
            _Follower(corpus, sampler, self.shares[corpus] / self.shares[0], place, prefetch)
            for corpus, (sampler, place) in enumerate(zip(samplers, places, strict=True), 1)
        ]
        for update in chain.from_iterable(prefetch(first.plans(begin))):
            micro_batches = [MicroBatch(0, update.epoch, pairs) for pairs in update.micro_batches]
            tokens = sum(first.target_tokens(pairs) for pairs in update.micro_batches) if others else 0
            micro_batches += chain.from_iterable(other.follow(tokens) for other in others)
            after = (update.next_position, *(other.position for other in others))
            yield MixedUpdate(update.epoch, after, update.updates_per_epoch, micro_batches)


class _Follower:
    """Draws micro-batches of another corpus, with `ratio` target tokens for each target token of the first corpus."""

    def __init__(
        self,
        corpus: int,
        sampler: BatchSampler,
        ratio: float,
        position: DataPosition,
        prefetch: Callable[[Plans], Plans],
    ) -> None:
        self.position = position
        self._corpus, self._sampler, self._ratio = corpus, sampler, ratio
        self._planned = chain.from_iterable(prefetch(sampler.plans(position)))

    def follow(self, tokens: int) -> Iterator[MicroBatch]:
        """Yield micro-batches until the corpus has its share, after `tokens` more target tokens of the first corpus."""
        ahead = self.position.ahead - self._ratio * tokens
        while ahead < 0:
            update = next(self._planned)
            (pairs,) = update.micro_batches
            ahead += self._sampler.target_tokens(pairs)
            self.position = update.next_position
            yield MicroBatch(self._corpus, update.epoch, pairs)
        self.position = self.position._replace(ahead=ahead)


def seed_of(seed: int, corpus: int) -> int:
    """Return the seed of a corpus. Seeds differ, so that corpora with equal texts are not read in the same order."""
    if corpus == 0:
        return seed
    return int(np.random.SeedSequence((seed, corpus)).generate_state(1, np.uint64)[0])
