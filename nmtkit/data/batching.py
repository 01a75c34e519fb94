"""Which sentences make which update: a pure function of lengths, seed and epoch.

An epoch is planned part by part. Each takes its sentences from all over the corpus, by a permutation that is computed
and never stored, so that neither time nor memory of a plan grows with the corpus. Within a part, sentence pairs of
about the same length are cut into micro-batches that hold little padding; these are shuffled and dealt into updates of
about `batch_tokens` target tokens (§5.1). Nothing here knows how many devices there are: they share out the
micro-batches of an update.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Indices
from nmtkit.data.permutation import permuted

PART = 1 << 18  # sentence pairs planned at once: many updates, some 30 MB, a fraction of a second
ORDER_VERSION = 2  #: of the data order, this module and `permutation`; 1 sorted by length without jitter
_JITTERED = 1 / 3  # share of the pairs that are sorted as if one token longer: more adds padding and parts few mates


class Lengths(Protocol):
    """Tokens of each sentence of one side, EOS counted: an array, or what looks them up on the disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, sentences: Indices, /) -> NDArray[np.int32]: ...


class Place(NamedTuple):
    """How far a run has come in its data: after so many updates of a part of an epoch."""

    epoch: int = 1  # counted from 1
    part: int = 0  # of the epoch, counted from 0
    updates: int = 0  # of the part


START = Place()


@dataclass(frozen=True)
class Update:
    """The sentences of one update, as micro-batches of indices into the training split."""

    epoch: int  # counted from 1
    after: Place  # where the run stands once it is done
    an_epoch: int  # updates in an epoch: exact where it is one part, else what this part promises
    micro_batches: list[Indices]


def parts_of(pairs: int) -> int:
    """In how many parts an epoch of so many sentence pairs is planned."""
    return max(1, -(-pairs // PART))


class BatchSampler:
    """Deals the sentences of a split into updates, epoch after epoch.

    `source` and `target` are the lengths in tokens. Unless it is a single pair, no micro-batch holds more than
    `max_tokens` tokens of padded source or of padded target, nor more of the latter than an update's `batch_tokens`.
    """

    def __init__(self, source: Lengths, target: Lengths, batch_tokens: int, max_tokens: int, seed: int) -> None:
        self.source, self.target = source, target
        self.batch_tokens, self.max_tokens, self.seed = batch_tokens, max_tokens, seed
        self.parts = parts_of(len(source))

    def epoch(self, epoch: int) -> Iterator[Update]:
        """All updates of one epoch (counted from 1); each sentence stands in exactly one of them."""
        for part in range(self.parts):
            yield from self._part(epoch, part)

    def updates(self, place: Place = START) -> Iterator[Update]:
        """Updates without end, going on from a place."""
        return chain.from_iterable(self.plans(place))

    def plans(self, place: Place) -> Iterator[list[Update]]:
        """The updates of each part without end, going on from a place."""
        epoch, part, done = place
        while True:
            yield self._part(epoch, part)[done:]
            epoch, part, done = (epoch, part + 1, 0) if part + 1 < self.parts else (epoch + 1, 0, 0)

    def _part(self, epoch: int, part: int) -> list[Update]:
        """The updates of one part. Parts are of the same size, within one pair."""
        pairs = len(self.source)
        begin, end = (pairs * number // self.parts for number in (part, part + 1))
        sentences = permuted(np.arange(begin, end), pairs, (self.seed, epoch))
        source, target = self.source[sentences], self.target[sentences]
        random = np.random.default_rng((self.seed, epoch, part))
        order = _by_length(target, source, random) if epoch % 2 else _by_length(source, target, random)
        batches = cut(order, source, target, self.max_tokens, self.batch_tokens)
        shuffled = random.permutation(len(batches))
        updates = self._deal([batches[number] for number in shuffled], target)
        following = Place(epoch, part + 1) if part + 1 < self.parts else Place(epoch + 1)
        places = [*(Place(epoch, part, number) for number in range(1, len(updates))), following]
        return [
            Update(epoch, after, len(updates) * self.parts, [sentences[batch] for batch in micro_batches])
            for after, micro_batches in zip(places, updates, strict=True)
        ]

    def _deal(self, batches: list[Indices], target: NDArray[np.int32]) -> list[list[Indices]]:
        """Neighbouring micro-batches into updates whose target tokens come nearest to `batch_tokens`."""
        updates: list[list[Indices]] = []
        room = 0
        for batch in batches:
            tokens = int(target[batch].sum())
            if room < tokens / 2:
                updates.append([])
                room = self.batch_tokens
            updates[-1].append(batch)
            room -= tokens
        return updates


def _by_length(first: NDArray[np.int32], second: NDArray[np.int32], random: np.random.Generator) -> Indices:
    """Places by jittered length of one side, then by length of the other.

    The second length goes up and down in turn, so that neighbours stay alike where the first steps. Equal pairs keep
    the order in which they stand.
    """
    jittered = first + (random.random(len(first)) < _JITTERED)
    order: Indices = np.lexsort((np.where(jittered % 2 == 0, second, -second), jittered))
    return order


def cut(
    order: Indices, source: NDArray[np.int32], target: NDArray[np.int32], max_tokens: int, target_tokens: int
) -> list[Indices]:
    """Cut sentences, in the given order, into runs whose padded source and padded target fit.

    A run holds at most `max_tokens` padded tokens a side and at most `target_tokens` padded target tokens, or a
    single sentence.
    """
    batches = []
    begin = 0
    room = min(max_tokens, target_tokens)
    while begin < len(order):
        # bounds the work of a run: its longest target is at least as long as its first
        window = order[begin : begin + max(1, room // max(1, int(target[order[begin]])))]
        count = np.arange(1, len(window) + 1)
        fits = np.maximum.accumulate(target[window]) * count <= room
        fits &= np.maximum.accumulate(source[window]) * count <= max_tokens
        size = len(window) if fits.all() else max(1, int(fits.argmin()))
        batches.append(window[:size])
        begin += size
    return batches
