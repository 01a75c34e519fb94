"""Batching: divides an epoch into updates, as a pure function of lengths, seed and epoch.

An epoch is planned in parts. Each part samples the whole corpus, through a permutation that is computed and never
stored, so planning a part takes the same time and memory for any corpus. Within a part, sentence pairs are sorted by
length and cut into micro-batches with little padding. The micro-batches are shuffled and grouped into updates of about
`batch_tokens` target tokens (§5.1). The plan does not depend on the number of devices, which share each update.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Indices
from nmtkit.data.permutation import permute

PART = 1 << 18  # sentence pairs planned at a time: many updates, about 30 MB, a fraction of a second
ORDER_VERSION = 2  #: version of the data order of this module and `permutation`; version 1 had no jitter
_JITTER_SHARE = 1 / 3  # of pairs are sorted as if one token longer; more jitter adds padding and hardly improves mixing


class Lengths(Protocol):
    """The length of each sentence of one side, in tokens with EOS: an array, or a look-up on disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, sentences: Indices, /) -> NDArray[np.int32]: ...


class DataPosition(NamedTuple):
    """The position of a run in a corpus."""

    epoch: int = 1  # counted from 1
    part: int = 0  # of the epoch, counted from 0
    updates: int = 0  # done in the part
    ahead: float = 0.0  # in a mixture: target tokens beyond the corpus's share, fewer than its last micro-batch has


START = DataPosition()


@dataclass(frozen=True)
class Update:
    """The sentence pairs of one update, as micro-batches of indices into the training split."""

    epoch: int  # counted from 1
    next_position: DataPosition  # after this update
    updates_per_epoch: int  # exact if the epoch is one part, otherwise extrapolated from this part
    micro_batches: list[Indices]


class BatchSampler:
    """Groups the sentence pairs of a split into updates, epoch after epoch.

    `source` and `target` are the lengths in tokens. A micro-batch has at most `max_tokens` padded tokens per side and
    `batch_tokens` padded target tokens, or is a single pair. Without `is_grouped`, each micro-batch is an update.
    """

    def __init__(
        self,
        source: Lengths,
        target: Lengths,
        batch_tokens: int,
        max_tokens: int,
        seed: int,
        is_grouped: bool = True,
    ) -> None:
        self.source, self.target, self.is_grouped = source, target, is_grouped
        self.batch_tokens, self.max_tokens, self.seed = batch_tokens, max_tokens, seed
        self.parts = max(1, -(-len(source) // PART))  # of an epoch

    def target_tokens(self, pairs: Indices) -> int:
        """Count the target tokens of some sentence pairs."""
        return int(self.target[pairs].sum())

    def plans(self, position: DataPosition) -> Iterator[list[Update]]:
        """Yield the list of updates of each part endlessly, starting at `position`."""
        epoch, part, done, _ = position
        while True:
            yield self._part(epoch, part)[done:]
            epoch, part, done = (epoch, part + 1, 0) if part + 1 < self.parts else (epoch + 1, 0, 0)

    def _part(self, epoch: int, part: int) -> list[Update]:
        """Plan the updates of one part. The sizes of parts differ by at most one pair."""
        pairs = len(self.source)
        begin, end = (pairs * number // self.parts for number in (part, part + 1))
        sentences = permute(np.arange(begin, end), pairs, (self.seed, epoch))
        source, target = self.source[sentences], self.target[sentences]
        random = np.random.default_rng((self.seed, epoch, part))
        order = _sort_by_length(target, source, random) if epoch % 2 else _sort_by_length(source, target, random)
        batches = batch_by_tokens(order, source, target, self.max_tokens, self.batch_tokens)
        shuffled = random.permutation(len(batches))
        updates = self._group_into_updates([batches[number] for number in shuffled], target)
        next_part = DataPosition(epoch, part + 1) if part + 1 < self.parts else DataPosition(epoch + 1)
        positions = [*(DataPosition(epoch, part, number) for number in range(1, len(updates))), next_part]
        return [
            Update(epoch, next_position, len(updates) * self.parts, [sentences[batch] for batch in micro_batches])
            for next_position, micro_batches in zip(positions, updates, strict=True)
        ]

    def _group_into_updates(self, batches: list[Indices], target: NDArray[np.int32]) -> list[list[Indices]]:
        """Group consecutive micro-batches into updates as close to `batch_tokens` target tokens as possible."""
        if not self.is_grouped:
            return [[batch] for batch in batches]
        updates: list[list[Indices]] = []
        budget = 0
        for batch in batches:
            tokens = int(target[batch].sum())
            if budget < tokens / 2:
                updates.append([])
                budget = self.batch_tokens
            updates[-1].append(batch)
            budget -= tokens
        return updates


def _sort_by_length(first: NDArray[np.int32], second: NDArray[np.int32], random: np.random.Generator) -> Indices:
    """Sort indices by the jittered length of one side, then by the length of the other, stably. The direction of the
    second sort alternates, so that neighbors stay similar when the first length changes."""
    jittered = first + (random.random(len(first)) < _JITTER_SHARE)
    order: Indices = np.lexsort((np.where(jittered % 2 == 0, second, -second), jittered))
    return order


def batch_by_tokens(
    order: Indices, source: NDArray[np.int32], target: NDArray[np.int32], max_tokens: int, target_tokens: int
) -> list[Indices]:
    """Cut sentence pairs, in the given order (n,), into micro-batches: consecutive slices of `order`.

    Each has at most `max_tokens` padded tokens per side and `target_tokens` padded target tokens, or is a single pair.
    """
    batches = []
    begin = 0
    budget = min(max_tokens, target_tokens)
    while begin < len(order):
        # no batch exceeds this window, since its longest target is at least as long as its first
        window = order[begin : begin + max(1, budget // max(1, int(target[order[begin]])))]
        count = np.arange(1, len(window) + 1)
        fits = np.maximum.accumulate(target[window]) * count <= budget
        fits &= np.maximum.accumulate(source[window]) * count <= max_tokens
        size = len(window) if fits.all() else max(1, int(fits.argmin()))
        batches.append(window[:size])
        begin += size
    return batches
