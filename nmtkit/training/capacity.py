"""Resolves --packing auto and --max-tokens auto: on a GPU, the largest micro-batch that fits into its memory.

Both are resolved when a run begins. Checkpoints record them as if they had been given, and a resumed run uses them on
any machine, because the micro-batches of an update determine its dropout masks.
"""

from dataclasses import replace
from typing import Any

import torch

from nmtkit.console.log import logger
from nmtkit.data.batch import Batch
from nmtkit.errors import UserError
from nmtkit.machine.memory import free_memory, is_out_of_memory
from nmtkit.machine.precision import autocast, resolve_precision
from nmtkit.model.config import TransformerConfig
from nmtkit.model.packed_attention import kernel_for
from nmtkit.text.vocabulary import EOS
from nmtkit.training.config import AUTO, CPU_TOKENS, BatchConfig, TrainingOptions
from nmtkit.training.construction import build_model
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.training_data import TrainingData

_SHARE = 0.9  # of the free memory; the rest is for temporary tensors and fragmentation
_TRIAL_TOKENS = 1024  # of the smaller of two trials


def with_batches_of_device(data: TrainingData, options: TrainingOptions, ranks: Ranks) -> TrainingOptions:
    """Resolve --packing auto and --max-tokens auto from the run's record, or else for the devices. Raises UserError."""
    recorded = ranks.run_on_main(lambda: SaveDir(options.checkpoints).read_options())
    batches = {} if recorded is None else recorded["batches"]
    packing = _packing(batches, options, ranks.device)
    options = replace(options, batches=replace(options.batches, packing=packing))
    if options.batches.max_tokens == AUTO:
        max_tokens = _max_tokens(batches, data, options, ranks)
        options = replace(options, batches=replace(options.batches, max_tokens=max_tokens))
    return options


def _packing(recorded: dict[str, Any], options: TrainingOptions, device: torch.device) -> str:
    packing, model = options.batches.packing, options.model
    if packing == "on" and model.arch != TransformerConfig.arch:
        raise UserError(f"--packing on supports only Transformers, not the architecture {model.arch}: omit it")
    if options.optimizer.guided_alignment:  # needs the attention weights, which no kernel returns
        return "off"
    if packing != "auto":
        return packing
    if recorded:
        return str(recorded.get("packing", "off"))
    return "on" if kernel_for(model, resolve_precision(options.device.precision, device), device) else "off"


def _max_tokens(recorded: dict[str, Any], data: TrainingData, options: TrainingOptions, ranks: Ranks) -> int:
    """Return the tokens per side of a micro-batch, as the run has recorded them, or as many as fit on every GPU."""
    if not recorded and ranks.device.type == "cpu":
        return CPU_TOKENS
    if recorded:
        found = int(recorded["max_tokens"])
    else:
        found = min(ranks.gather(ranks.run_on_all(lambda: _Trial(data, options, ranks).largest())))
    logger.info("--max-tokens auto: %d", found)
    return found


class _Trial:
    """A model of the run's sizes, to measure the memory of micro-batches on a GPU."""

    def __init__(self, data: TrainingData, options: TrainingOptions, ranks: Ranks) -> None:
        self.longest = data.longest()
        train = data.splits[0]
        update = largest_update(train.source.tokens, train.target.tokens, options.batches)
        share = -(-update // ranks.size)  # larger micro-batches leave ranks idle
        self.at_most = max(self.longest, share)
        self.device, self.precision = ranks.device, resolve_precision(options.device.precision, ranks.device)
        model, optimizer = build_model(data.first, options, self.device), options.optimizer
        self.loss = MicroBatchLoss(model, optimizer.label_smoothing, optimizer.r_drop)
        numbers = sum(parameter.numel() for parameter in self.loss.parameters())
        self.kept = 4 * numbers * (2 + optimizer.keeps_average)  # bytes of Adam's moments and of averages
        self.budget = _SHARE * free_memory(self.device) - self.kept

    def largest(self) -> int:
        """Extrapolate from two small trials how many tokens per side fit into memory, and try the result."""
        sizes = [self._tokens(size * _TRIAL_TOKENS) for size in (1, 2)]
        if sizes[0] == sizes[1]:
            sizes[1] = 2 * sizes[0]
        one, two = (self._peak(size) for size in sizes)
        # A GPU allocates whole blocks: both trials may have used the same number.
        a_token = max(1.0, (two - one) / (sizes[1] - sizes[0])) if two < torch.inf else torch.inf
        tokens = self._tokens(sizes[0] + (self.budget - one) / a_token) if one < torch.inf else self.longest
        while tokens > self.longest and not self._peak(tokens) <= self.budget:
            tokens = self._tokens(tokens * 0.9)
        return tokens

    def _tokens(self, tokens: float) -> int:
        return max(self.longest, min(int(tokens), self.at_most))

    def _peak(self, tokens: int) -> float:
        """Measure peak bytes of a forward and backward pass for the longest sentences; infinite if memory runs out."""
        rows = torch.full((max(1, tokens // self.longest), self.longest), EOS)
        batch = Batch.unpadded(rows, rows, rows).to(self.device)
        self.loss.zero_grad(set_to_none=True)
        try:
            return self._peak_memory(batch)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return torch.inf

    def _peak_memory(self, batch: Batch) -> float:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        with autocast(self.device, self.precision):
            loss, _ = self.loss(batch)
        torch.autograd.backward(loss)
        return float(torch.cuda.max_memory_allocated(self.device) - before)


def largest_update(source_tokens: int, target_tokens: int, batches: BatchConfig) -> int:
    """Estimate the maximum number of tokens per side in an update, for a corpus with these numbers of tokens.

    With packing, an update is cut into equal micro-batches, one for each rank if the largest update fits into them.
    Without packing, a micro-batch has about a rank's share of target tokens.
    """
    if batches.packing != "on":
        return batches.batch_tokens
    ratio = max(1.0, source_tokens / target_tokens)
    return int(ratio * (batches.batch_tokens + CPU_TOKENS // 2))
