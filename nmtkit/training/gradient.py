"""The gradient of one update, summed over its micro-batches on all ranks, and divided once by its target tokens.

A rank computes whole micro-batches. The sentences, micro-batches and dropout masks of an update do not depend on the
number of ranks, so runs on different numbers of ranks differ only in the rounding of sums.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from nmtkit.console.log import logger
from nmtkit.data.batch import Batch
from nmtkit.data.packing import MicroBatchTensors, Share
from nmtkit.errors import RunError
from nmtkit.machine.memory import is_out_of_memory, out_of_memory
from nmtkit.machine.precision import autocast
from nmtkit.text.vocabulary import BOS, EOS
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.wording import first_line


@dataclass(frozen=True)
class _Chunk:
    """Part `part` of micro-batch `number`, computed at once. With `weight` 0, it only takes part in synchronization."""

    number: int
    part: int
    batch: MicroBatchTensors
    dataset: int = 0
    weight: float = 1.0


class UpdateGradient:
    """Computes the gradient of each update into the parameters' `.grad`, with equal values on every rank."""

    def __init__(
        self,
        loss: MicroBatchLoss,
        ranks: Ranks,
        precision: torch.dtype,
        scaler: torch.amp.GradScaler,
        seed: int,
        datasets: int = 1,
    ) -> None:
        """`datasets` is the number of datasets, whose losses are summed separately."""
        self.loss, self.datasets = loss, datasets
        self.ranks, self.precision, self.scaler, self.seed = ranks, precision, scaler, seed
        self.memory_limit: int | None = None  # padded tokens of a chunk, halved when memory runs out
        self.times_out_of_memory = 0
        self._attempt: MicroBatchTensors  # the most recent chunk
        self._wrapped: DistributedDataParallel | None = None
        self._bucket_sizes: dict[int, int] = {}  # bucket number -> size; torch sums the gradient over ranks in buckets
        self._buckets_summed = 0
        self._wrap()

    def compute(
        self, update: int, share: Share, tokens: int, votes: Sequence[float], dataset_of: Sequence[int] = ()
    ) -> tuple[Tensor, list[float]]:
        """Compute the gradient of the mean loss per target token of an update. Collective.

        `tokens` is the number of target tokens on all ranks. `share` contains this rank's micro-batches with their
        numbers in the update; it may be empty. `dataset_of` gives the dataset of each micro-batch of the update; by
        default, all are from the first. Returns sums over all ranks: loss and negative log-likelihood of each dataset,
        (2 · datasets,) in float64 and nats, which the device may still be computing, and each of the `votes`.

        If a rank runs out of memory, all ranks repeat the update with smaller micro-batches. GPUs first repeat it
        unchanged, because their memory may only have been fragmented. Raises RunError if a single pair does not fit.
        """
        may_be_fragmented = self.ranks.device.type == "cuda"
        while True:
            ran_out, reason = False, "on a different device"
            try:
                losses = self._accumulate(update, share, tokens, dataset_of)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                ran_out, reason = True, first_line(error)
            if ran_out:  # outside the handler, whose traceback keeps the tensors alive
                for bucket in range(self._buckets_summed, len(self._bucket_sizes)):  # the other ranks wait for them
                    distributed.all_reduce(torch.zeros(self._bucket_sizes[bucket], device=self.ranks.device))
            *voted, failed = self.ranks.sum([*votes, ran_out])
            if not failed:
                return self.ranks.sum_on_devices(losses), voted
            if self.ranks.device.type == "cuda":
                torch.cuda.empty_cache()
            self.times_out_of_memory += 1
            if may_be_fragmented:
                may_be_fragmented = False
                logger.warning("update %d: out of memory; retrying after freeing cached memory (%s)", update, reason)
            else:
                self._lower_limit(update, ran_out)
            self._wrap()

    def _accumulate(self, update: int, share: Share, tokens: int, dataset_of: Sequence[int] = ()) -> Tensor:
        """Run the passes of this rank's share; return loss and nll of each dataset (2 · datasets,) in float64 on the
        device. The sum over ranks overlaps with the last backward pass."""
        self.loss.train()
        self.loss.zero_grad(set_to_none=True)
        self._buckets_summed = 0
        chunks = [
            _Chunk(number, part, batch, dataset_of[number] if dataset_of else 0)
            for number, parts in share
            for part, batch in enumerate(self._within_memory(parts))
        ]
        *before, last = chunks or [_IDLE]
        sums = torch.zeros(self.datasets, 2, device=self.ranks.device)
        for chunk in before:
            with self._wrapped.no_sync() if self._wrapped else nullcontext():
                sums[chunk.dataset] += self._backward(update, chunk, tokens, self._wrapped or self.loss)
        sums[last.dataset] += self._backward(update, last, tokens, self._wrapped or self.loss)
        return sums.flatten().double()

    def _within_memory(self, batches: Sequence[MicroBatchTensors]) -> Iterator[MicroBatchTensors]:
        for batch in batches:
            if self.memory_limit is None or batch.padded_tokens <= self.memory_limit:
                yield batch
            else:
                yield from batch.parts_within(max(1, self.memory_limit // 2))

    def _backward(self, update: int, chunk: _Chunk, tokens: int, module: nn.Module) -> Tensor:
        """Run the forward and backward pass of one chunk; return the sums of loss and nll (2,)."""
        self._attempt = chunk.batch
        of_dropout = np.random.SeedSequence((self.seed, update, chunk.number, chunk.part))
        torch.manual_seed(int(of_dropout.generate_state(1, np.uint64)[0]))
        with autocast(self.ranks.device, self.precision):
            loss, nll = module(chunk.batch.to(self.ranks.device))
        self.scaler.scale(loss * (chunk.weight / tokens)).backward()
        return torch.stack((loss.detach(), nll)) * chunk.weight

    def _wrap(self) -> None:
        """Set up the summation of gradients over ranks from a clean state."""
        self.loss.zero_grad(set_to_none=True)
        if self.ranks.size == 1:
            return
        self._wrapped = None
        gc.collect()  # free the hooks of the old wrapper
        # Position tables grow independently on the ranks, with equal values: do not broadcast them.
        tables = [name for name, _ in self.loss.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.loss, tables)  # type: ignore[no-untyped-call]
        self._wrapped = DistributedDataParallel(self.loss, gradient_as_bucket_view=True)
        self._wrapped.register_comm_hook(None, self._sum_bucket)
        for _ in range(2):  # torch fixes its buckets in the second pass; a rank that fails later needs their sizes
            self._bucket_sizes.clear()
            self._accumulate(0, (), 1)

    def _sum_bucket(
        self,
        _: None,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """Sum a bucket over ranks, not average it: the loss is already divided by the tokens of all ranks."""
        gradient = bucket.buffer()
        self._bucket_sizes[bucket.index()] = gradient.numel()
        self._buckets_summed += 1
        summed = distributed.all_reduce(gradient, async_op=True).get_future()
        return cast("torch.futures.Future[Tensor]", summed.then(lambda future: future.value()[0]))

    def _lower_limit(self, update: int, ran_out: bool) -> None:
        """Set the limit of all ranks to half of the smallest chunk for which one of them ran out of memory."""
        attempt, complaint = self._attempt, None
        if ran_out and attempt.sentences == 1:
            source, target = attempt.longest
            complaint = (
                f"{out_of_memory(self.ranks.device)} for one sentence pair of {source} and {target} tokens: preprocess "
                "with a smaller --max-length, or train a smaller model"
            )
        tokens = min(attempt.padded_tokens, self.memory_limit or attempt.padded_tokens)
        failed = self.ranks.gather((tokens, complaint) if ran_out else None)
        if complaints := [each[1] for each in failed if each and each[1]]:
            raise self.ranks.report_once(RunError(complaints[0]))
        self.memory_limit = min(each[0] for each in failed if each) // 2
        limit = f"{self.memory_limit} tokens of both sides, with padding"
        logger.warning("update %d: out of memory; retrying with at most %s", update, limit)


# Two sentences of weight 0, for a rank without a micro-batch. For sizes of 1, --compile would compile extra code.
_IDLE = _Chunk(0, 0, Batch.unpadded(*(torch.full((2, 2), token) for token in (EOS, BOS, EOS))), weight=0.0)
