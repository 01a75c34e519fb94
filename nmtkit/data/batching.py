"""Which sentences make which update: a pure function of lengths, seed and epoch.

Sentence pairs of about the same length are cut into micro-batches that hold little padding; the micro-batches of an
epoch are shuffled and dealt into updates of about `batch_tokens` target tokens (§5.1). Nothing here knows how many
devices there are: they share out the micro-batches of an update.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Update:
    """The sentences of one update, as micro-batches of indices into the training split."""

    epoch: int  # counted from 1
    number: int  # within the epoch, counted from 1
    of: int  # updates in this epoch
    micro_batches: list[Indices]


class Batcher:
    """Deals the sentences of a split into updates, epoch after epoch.

    `source` and `target` are the lengths in tokens, EOS counted. No micro-batch holds more than `max_tokens` tokens of
    padded source or of padded target, nor (by much) more than an update's `batch_tokens`.
    """

    def __init__(
        self, source: NDArray[np.int32], target: NDArray[np.int32], batch_tokens: int, max_tokens: int, seed: int
    ) -> None:
        self.source, self.target = source, target
        self.batch_tokens, self.max_tokens, self.seed = batch_tokens, max_tokens, seed
        too_long = np.flatnonzero(np.maximum(source, target) > max_tokens)
        if len(too_long):
            longest = int(np.maximum(source, target).max())
            raise UserError(
                f"--max-tokens {max_tokens}: {len(too_long)} of {len(source)} training pairs are longer, the first is "
                f"pair {too_long[0] + 1}: give at least {longest}, or preprocess with a smaller --max-length"
            )

    def epoch(self, epoch: int) -> list[Update]:
        """All updates of one epoch (counted from 1); each sentence stands in exactly one of them."""
        random = np.random.default_rng((self.seed, epoch))
        batches = cut(self._by_length(random), self.source, self.target, self.max_tokens, self.batch_tokens)
        batches = [batches[i] for i in random.permutation(len(batches))]
        updates = self._deal(batches)
        return [Update(epoch, number, len(updates), micro) for number, micro in enumerate(updates, 1)]

    def updates(self, epoch: int = 1, done: int = 0) -> Iterator[Update]:
        """Updates without end, going on after `done` updates of `epoch`."""
        while True:
            yield from self.epoch(epoch)[done:]
            epoch, done = epoch + 1, 0

    def _by_length(self, random: np.random.Generator) -> Indices:
        """All sentences by target length, then by source length, up and down in turn so that neighbours stay alike
        where the target length steps; equal pairs in random order."""
        tie = random.permutation(len(self.source))
        source = np.where(self.target % 2 == 0, self.source, -self.source)
        return np.lexsort((tie, source, self.target))

    def _deal(self, batches: list[Indices]) -> list[list[Indices]]:
        """Neighbouring micro-batches into updates whose target tokens come nearest to `batch_tokens`."""
        updates: list[list[Indices]] = []
        room = 0
        for batch in batches:
            tokens = int(self.target[batch].sum())
            if room < tokens / 2:
                updates.append([])
                room = self.batch_tokens
            updates[-1].append(batch)
            room -= tokens
        return updates


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
        # no run can be longer than one of sentences as short as its first, in a batch sorted by target length
        window = order[begin : begin + max(1, room // max(1, int(target[order[begin]])))]
        count = np.arange(1, len(window) + 1)
        fits = np.maximum.accumulate(target[window]) * count <= room
        fits &= np.maximum.accumulate(source[window]) * count <= max_tokens
        size = len(window) if fits.all() else max(1, int(fits.argmin()))
        batches.append(window[:size])
        begin += size
    return batches
