"""Determines --packing auto, and --max-tokens auto: the largest micro-batch that fits into a device's memory.

Both are determined when a run begins. The micro-batches of an update determine its dropout masks. So checkpoints record
both as if they had been given, and a resumed run uses them on any machine.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmtkit.console.log import logger
from nmtkit.data.batch import Batch
from nmtkit.errors import UserError
from nmtkit.machine.memory import free_memory, is_out_of_memory
from nmtkit.machine.precision import resolve_precision
from nmtkit.model.config import TransformerConfig
from nmtkit.model.packed_attention import kernel_for
from nmtkit.text.vocabulary import EOS
from nmtkit.training.config import AUTO, CPU_TOKENS, BatchConfig, CheckpointConfig, TrainingOptions
from nmtkit.training.construction import build_model
from nmtkit.training.loss import batch_loss
from nmtkit.training.mixed_precision import autocast
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.training_data import TrainingData

_SHARE = 0.9  # of the free memory; the rest is for temporary tensors and fragmentation
_TRIAL_TOKENS = 1024  # of the smaller of two trials


def with_batches_of_device(data: TrainingData, options: TrainingOptions, ranks: Ranks) -> TrainingOptions:
    """Determine `--packing` and `--max-tokens` if they are not given: as recorded by the run, or from the devices.

    Raises UserError for --packing with an architecture that cannot pack.
    """
    recorded = ranks.run_on_main(lambda: _recorded(options.checkpoints))
    options = _with(options, packing=_packing(recorded, options, ranks))
    return _with(options, max_tokens=_max_tokens(recorded, data, options, ranks))


def _with(options: TrainingOptions, **values: Any) -> TrainingOptions:
    return replace(options, batches=replace(options.batches, **values))


def _recorded(config: CheckpointConfig) -> Mapping[str, Any] | None:
    """The batch options in the newest checkpoint of the run whose header is intact; None if there is none."""
    recorded = SaveDir(config).read_options()
    if recorded is None:
        return None
    batches = recorded["batches"]
    return {"max_tokens": batches["max_tokens"], "packing": batches.get("packing", "off")}


def _packing(recorded: Mapping[str, Any] | None, options: TrainingOptions, ranks: Ranks) -> str:
    """Whether the run packs: on or off."""
    packing, model = options.batches.packing, options.model
    if packing == "auto" and recorded is not None:
        return str(recorded["packing"])
    if packing == "on" and model.arch != TransformerConfig.arch:
        raise UserError(f"--packing on is for Transformers, not for the architecture {model.arch}: omit it")
    if packing != "auto":
        return packing
    precision = resolve_precision(options.device.precision, ranks.device)
    has_kernel = kernel_for(model, precision, ranks.device) is not None
    return "on" if all(ranks.gather(has_kernel)) else "off"


def _max_tokens(recorded: Mapping[str, Any] | None, data: TrainingData, options: TrainingOptions, ranks: Ranks) -> int:
    """The tokens of a micro-batch: as given, as recorded by the run, or as many as fit on every rank."""
    given = options.batches.max_tokens
    wanted = ranks.gather(given)
    if all(wanted):
        return options.batches.micro_batch_tokens
    if recorded is not None:
        found = int(recorded["max_tokens"])
    elif AUTO not in wanted and ranks.device.type == "cpu":
        return options.batches.micro_batch_tokens
    else:
        largest = ranks.run_on_all(lambda: _Trial(data, options, ranks).largest())
        found = min(ranks.gather(largest))
    logger.info("--max-tokens auto: %d", found)
    return given or found


class _Trial:
    """A model of the run's sizes, to measure the memory of micro-batches."""

    def __init__(self, data: TrainingData, options: TrainingOptions, ranks: Ranks) -> None:
        self.longest = data.longest()
        train = data.splits[0]
        update = largest_update(train.source.tokens, train.target.tokens, options.batches)
        share = -(-update // ranks.size)  # more in a micro-batch leaves ranks idle
        self.at_most = max(self.longest, share)
        self.device, self.precision = ranks.device, resolve_precision(options.device.precision, ranks.device)
        self.smoothing = options.optimizer.label_smoothing
        self.model = build_model(data.first, options, self.device)
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


def largest_update(source_tokens: int, target_tokens: int, batches: BatchConfig) -> int:
    """The approximate maximum of the tokens of a side in an update, for a corpus with so many tokens.

    With packing, an update is cut into equal micro-batches. Each rank gets only one if the largest update makes no more
    micro-batches than there are ranks. Without packing, a micro-batch has about a rank's share of target tokens.
    """
    if batches.packing != "on":
        return batches.batch_tokens
    ratio = max(1.0, source_tokens / target_tokens)
    return int(ratio * (batches.batch_tokens + CPU_TOKENS // 2))


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
