"""Reports a run: its description at the start, metrics of updates and validations, the time left, and its end."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from nmtkit.console.log import Report, logger, report
from nmtkit.machine.precision import has_slow_bf16
from nmtkit.machine.threads import scheduled_seconds
from nmtkit.training import summary
from nmtkit.training.config import TrainingOptions
from nmtkit.training.cost import Cost
from nmtkit.training.learner import Learner
from nmtkit.training.loader import Work
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.state import RunState, Window
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION, Sample
from nmtkit.wording import counted, format_value

LONG_UPDATE = 60.0  # seconds; after a longer first update the run may seem to hang
_LONG_RUN = 24 * 60  # minutes
_BUSY = 0.1  # of the time that threads were ready to run

OnMetrics = Callable[[dict[str, Any]], object]  #: takes a row of metrics.jsonl


class RunLog:
    """Logs a run, and records its metrics in the process that has opened the metrics files."""

    def __init__(
        self, options: TrainingOptions, ranks: Ranks, cost: Cost, save_dir: SaveDir, on_metrics: OnMetrics | None = None
    ) -> None:
        self.options, self.ranks, self.cost, self.save_dir = options, ranks, cost, save_dir
        self.on_metrics = on_metrics
        self.metrics: MetricsWriter | None = None
        self.updates_per_epoch = 0  # until the first update is planned
        self.description: Report | None = None  # shown as a table when the first update is planned

    def summarize(self, state: RunState, data: TrainingData, learner: Learner, validates: bool) -> None:
        """Log a description of the run at its start, and that there is no validation unless it `validates`."""
        options, precision = self.options, str(learner.precision).removeprefix("torch.")
        self.description = Report("training")
        self.description.add("model", summary.describe_model(learner.model))
        for dataset, split, share in zip(data.datasets, data.splits, data.shares, strict=True):
            label = f"data, {share:.1%} of the target tokens" if data.is_mixed else "data"
            self.description.add(label, summary.describe_data(dataset, split))
        stop, warmup = options.stop, options.optimizer.warmup_updates
        at_most = "at most " if stop.max_epochs or stop.max_minutes or stop.patience else ""
        to_go = f"{at_most}{max(0, stop.max_updates - state.update)} to go"
        updates = f"{state.update} done, {to_go}, of about {options.batches.batch_tokens} target tokens"
        self.description.add("device", f"{self.ranks}, {precision}; updates: {updates}")
        self.description.add("checkpoints", summary.describe_checkpoints(learner.model, options))
        if not validates:
            logger.info(
                "no split '%s', so no validation and no best checkpoint: see --validpref of nmt-preprocess", VALIDATION
            )
        if learner.precision == torch.bfloat16 and has_slow_bf16(learner.device):
            logger.warning("this CPU has no instructions for bf16: --precision fp32 is faster")
        if state.update < stop.max_updates < state.schedule_start + warmup:
            logger.warning("the run ends before --warmup-updates %d: the learning rate never reaches its peak", warmup)

    def open_metrics(self, update: int, stack: contextlib.ExitStack) -> None:
        """Record metrics of updates after `update` until the `stack` closes."""
        tensorboard = self.options.checkpoints.tensorboard
        self.metrics = stack.enter_context(MetricsWriter(self.save_dir, update, tensorboard))

    def start(self, state: RunState, data: TrainingData) -> None:
        """Start measuring the pace of training."""
        self.first, self.scheduled = state.update + 1, scheduled_seconds()
        self.pace = summary.Pace(data.tokens_per_epoch)

    def plan(self, work: Work) -> None:
        """Count the target tokens of an update for the pace. First, log the plan, and warn if devices are idle."""
        first, self.updates_per_epoch = not self.updates_per_epoch, work.update.updates_per_epoch
        self.pace.tokens += int(work.lengths[1].sum())
        if not first or self.description is None:
            return
        micro_batches = len(work.update.micro_batches)
        per_epoch = counted(self.updates_per_epoch, "update")
        batches = counted(micro_batches, "micro-batch", "micro-batches")
        here = f", {len(work.numbers)} of them on this device" if len(work.numbers) < micro_batches else ""
        following = f"{sum(work.target_tokens):,} target tokens in {batches}{here}"
        self.description.add("plan", f"{per_epoch} an epoch; the next has {following}")
        self.description.show()
        if warning := summary.idle_devices(micro_batches, self.ranks.size, self.options.batches.packing == "on"):
            logger.warning("%s", warning)

    def after_update(self, state: RunState, window: Window) -> str:
        """Log the time left once, when enough updates are measured or a first one is long; return the bar's text."""
        if state.update == self.first:
            is_long = time.monotonic() - self.pace.began > LONG_UPDATE and not self.options.compute.compile
            self.updates_to_measure = 1 if is_long else summary.UPDATES_TO_MEASURE
        if state.update - self.first + 1 == self.updates_to_measure:
            self._report_time_left(self.minutes_left(state))
        averages, left = window.averages(), summary.duration(self.minutes_left(state))
        speed = f"{averages['tokens_per_second']:,} tok/s"
        return f"{left} left, loss {averages['loss']:.3f}, {speed}, lr {window.rate:.2e}"

    def _report_time_left(self, minutes: float) -> None:
        logger.info("time left: %s", summary.duration(minutes))
        ran, waited = (now - before for now, before in zip(scheduled_seconds(), self.scheduled, strict=True))
        if ran > 0 and waited > _BUSY * (ran + waited):
            share = 100 * waited / (ran + waited)
            logger.info("the machine is busy: training waited for a core %.0f %% of the time; see --threads", share)
        if minutes > _LONG_RUN and not self.options.stop.budget:
            logger.info("to end sooner, let --budget plan the run: --budget 8h ends in 8 hours")

    def record_updates(self, state: RunState, window: Window, device: torch.device) -> None:
        """Record the metrics of the updates in `window`."""
        values = {
            "epoch": state.last_epoch,
            **window.averages(),
            **window.by_dataset(),
            "mfu": self.cost.utilization(window.flops, window.seconds),
            "lr": window.rate,
            "gradient_norm": window.gradient_norm,
            "skipped": state.skipped or None,
            "out_of_memory": state.out_of_memory or None,
            "peak_memory_gib": summary.peak_memory(device),
            "minutes": round(state.minutes, 2),
            "processor_minutes": round(state.processor_minutes, 2),
            "tflop": state.flops / 1e12,
            "minutes_left": self.minutes_left(state),
        }
        self._record("train", state.update, values)

    def record_validation(self, state: RunState, samples: Sequence[Sample]) -> None:
        """Record the validation at the current update."""
        values = {"epoch": state.last_epoch, **state.validation, "best": state.best}
        self._record("valid", state.update, values, samples, table=f"validation after update {state.update}")

    def minutes_left(self, state: RunState) -> float:
        """Estimate the minutes until the run ends, see `Pace`."""
        return self.pace.minutes_left(state, self.options.stop, self.updates_per_epoch)

    def finish(self, state: RunState, reason: str | None, next: str) -> None:
        """Log why the run stops, and its cost. On a terminal, also show the best result and the `next` command."""
        if self.description:
            self.description.show()  # if no update was planned
        logger.info("stopped after update %d: %s", state.update, reason)
        end, folder = Report("end of training"), self.options.checkpoints.save_dir
        end.add("time", summary.duration(state.minutes), plain=False)
        end.add("best validation", "none" if state.best is None else format_value(state.best), plain=False)
        end.add("checkpoints", str(folder), plain=False)
        end.add("cost", self.cost.describe(state.flops, state.minutes))
        end.show(next)

    def _record(
        self, event: str, update: int, values: dict[str, Any], samples: Sequence[Sample] = (), table: str = ""
    ) -> None:
        """Record an event in the main process. Collective: an error there ends all ranks."""

        def write() -> None:
            if self.metrics is not None:
                report(event, {"update": update, **values}, table)
                self.metrics.write(event, update, values, samples)
                if self.on_metrics is not None:
                    self.on_metrics({"event": event, "update": update, **values})

        self.ranks.run_on_main(write)
