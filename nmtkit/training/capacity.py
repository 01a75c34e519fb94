"""--max-tokens auto: the largest micro-batch that fits into a device's memory, determined when a run begins.

The micro-batches of an update determine its dropout masks. So checkpoints record the number as if it had been given,
and a resumed run uses that number on any machine.
"""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtkit.checkpoint import read_progress
from nmtkit.data.batch import Batch
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.model.memory import free_memory, is_out_of_memory
from nmtkit.model.precision import resolve_precision
from nmtkit.run_files import list_checkpoints
from nmtkit.training.config import AUTO, TrainingOptions
from nmtkit.training.construction import build_model
from nmtkit.training.loss import batch_loss
from nmtkit.training.mixed_precision import autocast
from nmtkit.training.ranks import Ranks
from nmtkit.training.training_data import TrainingData
from nmtkit.vocab import EOS

_SHARE = 0.9  # of the free memory; the rest is for temporary tensors and fragmentation
_TRIAL_TOKENS = 1024  # of the smaller of two trials


def with_max_tokens(data: TrainingData, options: TrainingOptions, ranks: Ranks) -> TrainingOptions:
    """Replace `--max-tokens auto` by the run's previous number, or by the largest that fits on every rank."""
    if AUTO not in ranks.gather(options.batches.max_tokens):
        return options
    found = ranks.run_on_main(lambda: _recorded(options.checkpoints.save_dir))
    if found is None:
        largest = ranks.run_on_all(lambda: _Trial(data.first, data.longest(), options, ranks).largest())
        found = min(ranks.gather(largest))
    logger.info("--max-tokens auto: %d", found)
    batches = options.batches
    return replace(options, batches=replace(batches, max_tokens=batches.max_tokens or found))


def _recorded(save_dir: Path) -> int | None:
    for _, path in reversed(list_checkpoints(save_dir)):
        try:
            return int(read_progress(path)["options"]["batches"]["max_tokens"])
        except (UserError, KeyError):  # damaged, or an average
            continue
    return None


class _Trial:
    """A model of the run's sizes, to measure the memory of micro-batches; `longest` is the length of a sentence."""

    def __init__(self, dataset: Dataset, longest: int, options: TrainingOptions, ranks: Ranks) -> None:
        self.longest = longest
        share = -(-options.batches.batch_tokens // ranks.size)  # of an update: a larger micro-batch leaves ranks idle
        self.at_most = max(self.longest, share)
        self.device, self.precision = ranks.device, resolve_precision(options.device.precision, ranks.device)
        self.smoothing = options.optimizer.label_smoothing
        self.model = build_model(dataset, options, self.device)
        numbers = sum(parameter.numel() for parameter in self.model.parameters())
        self.kept = 4 * numbers * (2 + (options.optimizer.ema > 0))  # bytes of Adam's moments and of averages
        self.budget = _SHARE * free_memory(self.device) - self.kept

    def largest(self) -> int:
        """Tokens of a side that fit into memory, at least one sentence.

        Extrapolates from two small trials; on a GPU the result is then tried itself.
        """
        sizes = [self._tokens(size * _TRIAL_TOKENS) for size in (1, 2)]
        if sizes[0] == sizes[1]:
            sizes[1] = 2 * sizes[0]
        try:
            one, two = (self._peak(size) for size in sizes)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return self.longest  # the minimum
        a_token = max(
            1.0, (two - one) / (sizes[1] - sizes[0])
        )  # a GPU allocates blocks: both trials may have used equally many
        tokens = self._tokens(sizes[0] + (self.budget - one) / a_token)
        while self.device.type == "cuda" and tokens > self.longest and not self._fits(tokens):
            tokens = self._tokens(tokens * 0.9)
        return tokens

    def _tokens(self, tokens: float) -> int:
        return max(self.longest, min(int(tokens), self.at_most))

    def _fits(self, tokens: int) -> bool:
        try:
            return self._peak(tokens) <= self.budget
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return False

    def _peak(self, tokens: int) -> float:
        """Bytes that forward and backward pass need for sentences of the greatest length."""
        rows = torch.full((max(1, tokens // self.longest), self.longest), EOS)
        batch = Batch.unpadded(rows, rows, rows).to(self.device)
        self.model.zero_grad(set_to_none=True)
        return _peak_memory(self.device, lambda: self._pass(batch))

    def _pass(self, batch: Batch) -> None:
        with autocast(self.device, self.precision):
            loss, _ = batch_loss(self.model, batch, self.smoothing)
        torch.autograd.backward(loss)


def _peak_memory(device: torch.device, work: Callable[[], None]) -> float:
    """The peak of the bytes in tensors that `work` makes."""
    if device.type != "cuda":
        allocations = _Allocations()
        with allocations:
            work()
        return allocations.peak
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return float(torch.cuda.max_memory_allocated(device) - before)


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors that operators have made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operator(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.untyped_storage() not in self._known:
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.live -= size
