"""Loads one rank's micro-batches of each update, in threads that work ahead."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.data.alignments import Alignments
from nmtkit.data.batch import Batch, make_batch
from nmtkit.data.batching import DataPosition
from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.mixture import MicroBatch, MixedUpdate, Mixture, Plans, seed_of
from nmtkit.data.packing import (
    MicroBatchTensors,
    Share,
    SideLengths,
    make_packed_batch,
    pack_micro_batches,
    packed_size,
)
from nmtkit.data.sampling import PairSampling
from nmtkit.training.config import TrainingOptions
from nmtkit.training.ranks import Ranks


@dataclass(frozen=True)
class Work:
    """An update and this rank's share of its micro-batches, each with its number in the update."""

    update: MixedUpdate
    lengths: tuple[NDArray[np.int32], NDArray[np.int32]]  # source and target, of all stored sentences of the update
    target_tokens: list[int]  # of the whole update, by dataset
    tokens: int  # of both sides, like the next
    padded_tokens: int
    numbers: list[int]
    batches: Iterable[list[MicroBatchTensors]]  # the parts of each micro-batch

    @property
    def datasets(self) -> list[int]:
        """The dataset's number for each micro-batch of the update."""
        return [micro_batch.corpus for micro_batch in self.update.micro_batches]

    def share(self) -> Share:
        """Wait for this rank's micro-batches, and return them with their numbers."""
        return list(zip(self.numbers, self.batches, strict=True))

    def with_exact_counts(self, share: Share, ranks: Ranks) -> "Work":
        """Return this work with exact token counts, because lengths of sampled pairs are known only now. Collective."""
        datasets, mine = self.datasets, [0] * len(self.target_tokens)
        for number, parts in share:
            mine[datasets[number]] += sum(part.target_tokens for part in parts)
        batches = [part for _, parts in share for part in parts]
        both = sum(batch.source_tokens + batch.target_tokens for batch in batches)
        padded = sum(batch.padded_tokens for batch in batches)
        *target, tokens, padded_tokens = map(int, ranks.sum([*mine, both, padded]))
        return replace(self, target_tokens=target, tokens=tokens, padded_tokens=padded_tokens)


class Loader:
    """Distributes the micro-batches of each update over `size` ranks, and collates those of `rank` in threads."""

    def __init__(
        self,
        splits: Sequence[Split],
        mixture: Mixture,
        rank: int,
        size: int,
        num_workers: int,
        sampling: Sequence[PairSampling] = (),
        pinned: bool = False,
        packing: bool = False,
        max_tokens: int = sys.maxsize,
        alignments: Alignments | None = None,
    ) -> None:
        """`sampling` is the sampling of each split's pairs, if they change. `pinned` puts batches into page-locked
        memory, for asynchronous copies to a GPU. `packing` packs sentences into micro-batches of at most `max_tokens`
        per side; without it, only micro-batches of sampled pairs need this limit. `alignments` belong to the first
        split, whose pairs do not change."""
        self.splits, self.mixture, self.sampling, self.pinned = splits, mixture, sampling, pinned
        self.packing, self.max_tokens, self.alignments = packing, max_tokens, alignments
        self.rank, self.size, self.num_workers = rank, size, num_workers

    def updates(self, position: Sequence[DataPosition]) -> Iterator[Work]:
        """Yield updates endlessly, starting at `position`. Threads prepare one update ahead."""
        if self.num_workers == 0:
            yield from (self._work(update, None) for update in self.mixture.updates(position))
            return
        planned = self.mixture.updates(position, _prefetch)
        with ThreadPoolExecutor(self.num_workers) as pool:
            for now, following in pairwise(self._work(update, pool) for update in planned):
                del following  # its preparation has started
                yield now

    def _work(self, update: MixedUpdate, pool: ThreadPoolExecutor | None) -> Work:
        if self.packing:
            micro_batches = pack_micro_batches(update.micro_batches, self._lengths, self.max_tokens)
            update = replace(update, micro_batches=micro_batches)
        sources, targets = zip(*map(self._lengths, update.micro_batches), strict=True)
        costs = [self._cost(*sides) for sides in zip(sources, targets, strict=True)]
        numbers = balanced_shares(costs, self.size)[self.rank]
        lengths = np.concatenate(sources), np.concatenate(targets)
        target_tokens = [0] * len(self.splits)
        for each, target in zip(update.micro_batches, targets, strict=True):
            target_tokens[each.corpus] += int(target.sum())
        tokens = int(lengths[0].sum()) + sum(target_tokens)
        batches = (pool.map if pool else map)(self._collate, [update.micro_batches[number] for number in numbers])
        return Work(update, lengths, target_tokens, tokens, sum(costs), numbers, batches)

    def _lengths(self, micro_batch: MicroBatch) -> tuple[SideLengths, SideLengths]:
        """Return the lengths of the stored sentences of both sides, in tokens with EOS."""
        split, pairs = self.splits[micro_batch.corpus], micro_batch.pairs
        return split.source.lengths[pairs], split.target.lengths[pairs]

    def _cost(self, source: SideLengths, target: SideLengths) -> int:
        if self.packing:
            return packed_size(int(source.sum())) + packed_size(int(target.sum()))
        return len(source) * int(source.max() + target.max())

    def _collate(self, micro_batch: MicroBatch) -> list[MicroBatchTensors]:
        """Return the parts of a micro-batch: several if its pairs are sampled, and have become longer or unequal."""
        corpus, epoch, pairs = micro_batch
        make = make_packed_batch if self.packing else make_batch
        parts: list[MicroBatchTensors]
        if self.sampling:
            source, target = self.sampling[corpus].gather(epoch, pairs)
            parts = list(make(*source, *target).parts_within(self.max_tokens))
        else:
            split = self.splits[corpus]
            parts = [make(*split.source.gather(pairs), *split.target.gather(pairs))]
        if self.alignments is not None and corpus == 0 and isinstance(parts[0], Batch):
            aligned = self.alignments.gather(pairs, parts[0].tgt_out.size(1), parts[0].src.size(1))
            parts = [replace(parts[0], alignment=torch.from_numpy(aligned))]
        return [part.pin_memory() for part in parts] if self.pinned else parts


def _prefetch(plans: Plans) -> Plans:
    """Yield plans unchanged, while a thread prepares the next one."""
    with ThreadPoolExecutor(1) as planner:
        following = planner.submit(next, plans)
        while True:
            plan = following.result()
            following = planner.submit(next, plans)
            yield plan


def pair_sampling(datasets: Sequence[Dataset], splits: Sequence[Split], options: TrainingOptions) -> list[PairSampling]:
    """Create the sampling of each dataset for --subword-sampling and --augment; an empty list without the options. No
    sentence becomes longer than a micro-batch or the model's limit."""
    batches, limit = options.batches, options.model.length_limit
    if not (batches.subword_sampling or batches.augment):
        return []
    longest = min(batches.max_tokens, limit.tokens) if limit else batches.max_tokens
    return [
        PairSampling(dataset, split, batches.subword_sampling, longest, seed_of(batches.seed, number), batches.augment)
        for number, (dataset, split) in enumerate(zip(datasets, splits, strict=True))
    ]


def balanced_shares(costs: list[int], ranks: int) -> list[list[int]]:
    """Return the micro-batches of each rank, as ascending indices into `costs`, with about equal costs."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        rank = loads.index(min(loads))
        shares[rank].append(number)
        loads[rank] += costs[number]
    return [sorted(share) for share in shares]
