"""The updates of a run as one rank sees them: its micro-batches, made ahead of time."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from nmtkit.data.batch import Batch, collate, make_batch
from nmtkit.data.batching import BatchSampler, DataPosition, Update
from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.subwords import SubwordSampling
from nmtkit.training.config import TrainingOptions
from nmtkit.training.ranks import Ranks


@dataclass(frozen=True)
class Work:
    """An update and this rank's share of it: micro-batches, each with its number in the update."""

    update: Update
    target_tokens: int  # of the whole update, like the next two
    tokens: int  # of both sides
    padded_tokens: int
    numbers: list[int]
    batches: Iterable[Batch]

    def share(self) -> list[tuple[int, Batch]]:
        """This rank's micro-batches with their numbers; waits for the threads that prepare them."""
        return list(zip(self.numbers, self.batches, strict=True))

    def with_exact_counts(self, share: list[tuple[int, Batch]], ranks: Ranks) -> "Work":
        """The same with exact token counts: sampled subwords are counted only now. Collective."""
        batches = [batch for _, batch in share]
        target, both, padded = ranks.sum(
            [
                sum(batch.target_tokens for batch in batches),
                sum(batch.source_tokens + batch.target_tokens for batch in batches),
                sum(batch.padded_tokens for batch in batches),
            ]
        )
        return replace(self, target_tokens=int(target), tokens=int(both), padded_tokens=int(padded))


class Loader:
    """Distributes the micro-batches of each update, and collates those of rank `rank` of `size` in threads."""

    def __init__(
        self,
        split: Split,
        sampler: BatchSampler,
        rank: int,
        size: int,
        num_workers: int,
        sampling: SubwordSampling | None = None,
        pinned: bool = False,
    ) -> None:
        """`pinned` puts batches into page-locked memory, for asynchronous copies to a GPU."""
        self.split, self.sampler, self.sampling, self.pinned = split, sampler, sampling, pinned
        self.rank, self.size, self.num_workers = rank, size, num_workers

    def updates(self, position: DataPosition) -> Iterator[Work]:
        """Endless updates from a position; threads prepare one update ahead."""
        if self.num_workers == 0:
            yield from (self._work(update, None) for update in self.sampler.updates(position))
            return
        with ThreadPoolExecutor(self.num_workers) as pool:
            for now, following in pairwise(self._work(update, pool) for update in self._planned_ahead(position)):
                del following  # its preparation has started
                yield now

    def _planned_ahead(self, position: DataPosition) -> Iterator[Update]:
        """The updates from a position on; a thread plans the next part of the epoch meanwhile."""
        plans = self.sampler.plans(position)
        with ThreadPoolExecutor(1) as planner:
            following = planner.submit(next, plans)
            while True:
                plan = following.result()
                following = planner.submit(next, plans)
                yield from plan

    def _work(self, update: Update, pool: ThreadPoolExecutor | None) -> Work:
        sources = [self.split.source.lengths[indices] for indices in update.micro_batches]
        targets = [self.split.target.lengths[indices] for indices in update.micro_batches]
        costs = [len(s) * int(s.max() + t.max()) for s, t in zip(sources, targets, strict=True)]
        numbers = balanced_shares(costs, self.size)[self.rank]
        source_tokens, target_tokens = (sum(int(lengths.sum()) for lengths in side) for side in (sources, targets))
        batches = (pool.map if pool else map)(
            partial(self._collate, update.epoch), [update.micro_batches[number] for number in numbers]
        )
        return Work(update, target_tokens, source_tokens + target_tokens, sum(costs), numbers, batches)

    def _collate(self, epoch: int, indices: Indices) -> Batch:
        if self.sampling is None:
            batch = collate(self.split, indices)
        else:
            source, target = self.sampling.gather(epoch, indices)
            batch = make_batch(*source, *target)
        return batch.pin_memory() if self.pinned else batch


def subword_sampling(dataset: Dataset, split: Split, options: TrainingOptions) -> SubwordSampling | None:
    """The sampling of --subword-sampling. No sentence becomes longer than a micro-batch or the model allows."""
    batches, limit = options.batches, options.model.length_limit
    if not batches.subword_sampling:
        return None
    longest = min(batches.max_tokens, limit.tokens) if limit else batches.max_tokens
    return SubwordSampling(dataset, split, batches.subword_sampling, longest, batches.seed)


def balanced_shares(costs: list[int], ranks: int) -> list[list[int]]:
    """Micro-batch numbers for each rank: the most expensive first, each to the rank with the least cost so far."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        rank = loads.index(min(loads))
        shares[rank].append(number)
        loads[rank] += costs[number]
    return [sorted(share) for share in shares]
