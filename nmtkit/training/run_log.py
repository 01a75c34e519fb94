"""What a run reports: the lines at its start, the numbers of its updates and validations, and the time left."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from nmtkit.data.corpus import Dataset
from nmtkit.log import logger
from nmtkit.training.config import TrainingOptions
from nmtkit.training.cost import Cost
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.learner import Learner
from nmtkit.training.loader import Work
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.ranks import Ranks
from nmtkit.training.state import RunState, Window
from nmtkit.training.summary import (
    UPDATES_TO_MEASURE,
    Pace,
    describe_checkpoints,
    describe_data,
    describe_model,
    describe_plan,
    describe_run,
    duration,
    idle_devices,
    long_update,
    peak_memory,
)
from nmtkit.training.validation import VALIDATION, Sample


class RunLog:
    """Logs a run, and records its numbers in the process that opens the metrics."""

    def __init__(self, options: TrainingOptions, ranks: Ranks, cost: Cost) -> None:
        self.options, self.ranks, self.cost = options, ranks, cost
        self.metrics: MetricsWriter | None = None
        self.updates_per_epoch = 0  # until the first update is planned

    def summarize(self, state: RunState, dataset: Dataset, split: str, learner: Learner, validates: bool) -> None:
        """Describe the run at its start; `split` is trained on."""
        options, precision = self.options, str(learner.precision).removeprefix("torch.")
        for line in (
            describe_model(learner.model),
            describe_data(dataset, split),
            describe_run(state, options, str(self.ranks), precision),
            describe_checkpoints(learner.model, options),
        ):
            logger.info("%s", line)
        if not validates:
            logger.info("validation: no split '%s' (see --validpref); no checkpoint is best", VALIDATION)
        warmup, updates = options.optimizer.warmup_updates, options.stop.max_updates - state.schedule_start
        if 0 < updates < warmup:
            logger.warning("the run ends before --warmup-updates %d: the learning rate never reaches its peak", warmup)

    def open_metrics(self, update: int, stack: contextlib.ExitStack) -> None:
        """Record numbers from now on, after `update`, until the `stack` closes."""
        checkpoints = self.options.checkpoints
        self.metrics = stack.enter_context(MetricsWriter(checkpoints.save_dir, update, checkpoints.tensorboard))

    def start(self, state: RunState) -> None:
        """Start to measure the pace."""
        self.pace = Pace(state)

    def plan(self, work: Work, gradient: UpdateGradient) -> None:
        """Describe the plan of the first update and, once its first part is done, its duration if it is long."""
        first, self.updates_per_epoch = not self.updates_per_epoch, work.update.updates_per_epoch
        if not first:
            return
        micro_batches, began = len(work.update.micro_batches), time.monotonic()
        logger.info("%s", describe_plan(work))
        if warning := idle_devices(micro_batches, self.ranks.size):
            logger.warning("%s", warning)

        def estimate(parts: int) -> None:
            if hint := long_update(work.target_tokens, micro_batches, (time.monotonic() - began) * parts):
                logger.info("%s", hint)

        if not self.options.compute.compile:  # its first part takes much longer than the others
            gradient.after_first_part = estimate

    def after_update(self, state: RunState) -> None:
        """Log the time left, once, when enough updates are measured."""
        if self.pace.updates(state) == UPDATES_TO_MEASURE:
            logger.info("time left: %s", duration(self.minutes_left(state)))

    def record_updates(self, state: RunState, window: Window, device: torch.device) -> None:
        """Record the numbers of the updates in `window`."""
        values = {
            "epoch": state.last_epoch,
            **window.averages(),
            "mfu": self.cost.utilization(window.flops, window.seconds),
            "lr": window.rate,
            "gradient_norm": window.gradient_norm,
            "skipped": state.skipped or None,
            "out_of_memory": state.out_of_memory or None,
            "peak_memory_gib": peak_memory(device),
            "minutes": round(state.minutes, 2),
            "minutes_left": self.minutes_left(state),
        }
        self._record("train", state.update, values)

    def record_validation(self, state: RunState, samples: Sequence[Sample]) -> None:
        """Record the validation at the current update."""
        values = {"epoch": state.last_epoch, **state.validation, "best": state.best}
        self._record("valid", state.update, values, samples)

    def minutes_left(self, state: RunState) -> float:
        """Minutes until the run ends; see `Pace`."""
        return self.pace.minutes_left(state, self.options.stop, self.updates_per_epoch)

    def finish(self, state: RunState, reason: str | None) -> None:
        """Log why the run stops, and what it has cost."""
        logger.info("stopped after update %d: %s", state.update, reason)
        logger.info("%s", self.cost.describe(state.flops, state.minutes))

    def _record(self, event: str, update: int, values: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        if self.metrics is not None:
            self.metrics.write(event, update, values, samples)
