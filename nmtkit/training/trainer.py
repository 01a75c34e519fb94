"""The training loop: fit → update → validate → save.

A run is a function of its options, its data and the update number. Data order follows from (seed, epoch), the masks of
dropout from (seed, update, micro-batch), the learning rate from the update; so a run that is stopped at any checkpoint
and started again ends with the weights that it would have had. With many ranks, each holds the same model and comes to
the same decisions, because they rest on numbers that the ranks have added up.
"""

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.data.batching import ORDER_VERSION, BatchSampler
from nmtkit.data.corpus import Dataset
from nmtkit.errors import NmtkitError, RunError, Stopped
from nmtkit.log import Progress, finite, logger
from nmtkit.model.config import TransformerConfig
from nmtkit.model.precision import resolve_device
from nmtkit.training.capacity import with_max_tokens
from nmtkit.training.config import TrainingOptions
from nmtkit.training.cost import Cost
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.learner import Learner, memory_for_model
from nmtkit.training.loader import Loader, Work, subword_sampling
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.optim import SCHEDULE_VERSION, learning_rate
from nmtkit.training.ranks import Ranks, join
from nmtkit.training.resuming import resume
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.signals import Signals
from nmtkit.training.state import RunState, Window, restore
from nmtkit.training.summary import (
    UPDATES_TO_MEASURE,
    Pace,
    describe_checkpoints,
    describe_data,
    describe_model,
    describe_plan,
    describe_rehearsal,
    describe_run,
    duration,
    idle_devices,
    long_update,
    peak_memory,
)
from nmtkit.training.validation import VALIDATION, Sample, Validator
from nmtkit.wording import counted


class Totals(NamedTuple):
    """What the ranks add up in each update, so that its decisions are the same on all."""

    loss: float
    nll: float
    minutes: float  # since the run began, by the clock of the main process
    save: float  # whether to save now: the main process's --save-minutes, or a signal anywhere
    terminate: float  # signals that have arrived
    interrupt: float


def train(folder: Path, options: TrainingOptions) -> None:
    """Train a model on a dataset folder; goes on from the newest checkpoint in the save folder, if there is one.

    Below torchrun this is one of the processes that train together. Raises Stopped after SIGTERM or SIGINT.
    """
    if options.device.threads:
        torch.set_num_threads(options.device.threads)
    with join(resolve_device(options.device.device)) as ranks:
        dataset = ranks.run_on_all(lambda: Dataset.open(folder, options.reading.verify))
        with memory_for_model(dataset, options):
            options = with_max_tokens(dataset, options, ranks)
            trainer = ranks.run_on_all(lambda: Trainer(dataset, options, ranks))
            ranks.check_same({**options.common(), "--precision": trainer.learner.precision, **dataset.checksums()})
            trainer.rehearse() if options.stop.dry_run else trainer.fit()


class Trainer:
    """One training run, as one of its ranks sees it."""

    def __init__(self, dataset: Dataset, options: TrainingOptions, ranks: Ranks) -> None:
        self.dataset, self.options, self.ranks = dataset, options, ranks
        self.split = dataset.split("train")
        _check_positions(dataset, options.model)
        batches = options.batches
        self.split.check_lengths("--max-tokens", batches.max_tokens, "preprocess with a smaller --max-length")
        self.sampler = BatchSampler(
            self.split.source.lengths, self.split.target.lengths, batches.batch_tokens, batches.max_tokens, batches.seed
        )
        workers, sampling = options.loading.num_workers, subword_sampling(dataset, self.split, options)
        pinned = ranks.device.type == "cuda"
        self.loader = Loader(self.split, self.sampler, ranks.rank, ranks.size, workers, sampling, pinned)
        self.learner = Learner(dataset, options, ranks)
        model, precision = self.learner.model.config, self.learner.precision
        self.cost = Cost(model, len(dataset.target.vocab), self.split, ranks, precision)
        self.validator = Validator(dataset, options)
        self.state = RunState()
        self.window = Window()
        self.metrics: MetricsWriter | None = None  # of the main process
        self.signals = Signals(insistent=ranks.size == 1, is_main=ranks.is_main)
        self.stop_signal = 0  # the signal to stop that all ranks know of
        self.save_dir = SaveDir(options.checkpoints)
        self.saved: int | None = None  # the update of the newest checkpoint
        self.save_failures = 0  # in a row

    def fit(self) -> None:
        """Train until an option or a signal says to stop; validates and saves on the way and at the end."""
        ranks = self.ranks
        with self.signals, contextlib.ExitStack() as stack:
            ranks.run_on_main(lambda: stack.enter_context(self.save_dir.locked()))
            self._resume()
            self._summarize()
            ranks.run_on_main(lambda: self.save_dir.prepare(self.options.to_dict()))
            ranks.run_on_main(lambda: self._open_metrics(stack))
            self._fit()

    def rehearse(self) -> None:
        """Check all that can be checked, and time an update: the second, or the first after it that is not skipped.
        Writes nothing."""
        self.ranks.run_on_main(self.save_dir.check)
        self._resume()
        self._summarize()
        updates = self._begin()
        self._update(updates)
        while True:
            self.window, self.pace = Window(), Pace(self.state)
            self._update(updates)
            if self.window.target_tokens:
                break
        logger.info("%s", describe_rehearsal(self.window, self._minutes_left()))

    def _open_metrics(self, stack: contextlib.ExitStack) -> None:
        checkpoints = self.options.checkpoints
        writer = MetricsWriter(checkpoints.save_dir, self.state.update, checkpoints.tensorboard)
        self.metrics = stack.enter_context(writer)

    def _gradient(self) -> UpdateGradient:
        """Made once the weights are there: it hands those of the main process to all ranks."""
        learner, smoothing, batches = self.learner, self.options.optimizer.label_smoothing, self.options.batches
        gradient = UpdateGradient(
            learner.model, self.ranks, learner.precision, learner.scaler, smoothing, batches.seed, batches.max_tokens
        )
        gradient.limits.by_length = self.state.memory_limits
        gradient.times_out_of_memory = self.state.out_of_memory
        return gradient

    def _begin(self) -> Iterator[Work]:
        """Make what needs the weights in their place; returns the updates to come."""
        self.gradient = self._gradient()
        self.began = time.monotonic() - 60 * self.state.minutes
        self.pace = Pace(self.state)
        self.updates_an_epoch = 0  # until the first is there
        return self.loader.updates(self.state.place)

    def _fit(self) -> None:
        updates = self._begin()
        if self.state.update and self._is_due(self.options.validation.validate_every) and not self.state.validation:
            self._validate()  # a signal had come before it
            self._save()
        if self._reason_to_stop() and not self.stop_signal:
            logger.info("nothing is left to train: update %d is done already", self.state.update)
            self._round_off()  # a signal had come with the last update
        most = self.options.stop.max_updates
        with Progress("training", most, "updates", self.state.update, lines=False) as progress:
            while not self._reason_to_stop():
                self._update(updates)
                self._conclude()
                progress.advance()
        stop = self._reason_to_stop()
        logger.info("stopped after update %d: %s", self.state.update, stop)
        logger.info("%s", self.cost.describe(self.state.flops, self.state.minutes))
        if self.stop_signal:
            message = f"{stop}: update {self.state.update} is done and saved; the same command goes on"
            raise self.ranks.shared(Stopped(message, self.stop_signal))

    def _update(self, updates: Iterator[Work]) -> None:
        """One step of the optimizer: the gradient of all micro-batches of an update, divided once by its tokens."""
        start = time.perf_counter()
        work = next(updates)
        share = work.share()
        if self.loader.sampling is None:
            flops = self.cost.flops(work.update)
        else:
            work, flops = work.counted(share, self.ranks), self.cost.flops_as_drawn(share)
        state, window = self.state, self.window
        if not self.updates_an_epoch:
            self._announce(work)
        self.updates_an_epoch = work.update.an_epoch
        window.waiting += time.perf_counter() - start

        state.update += 1
        going_on = state.epoch == work.update.epoch  # larger updates than before may have ended the epoch
        before = state.updates_in_epoch if going_on else 0
        state.place = work.update.after
        state.updates_in_epoch = before + 1 if state.epoch == work.update.epoch else 0
        state.validation = {}
        totals = Totals(*self.gradient.compute(state.update, share, work.target_tokens, self._votes()))
        self._decide(totals)
        if self._step():
            window.loss, window.nll = window.loss + totals.loss, window.nll + totals.nll
            window.target_tokens += work.target_tokens
        elif state.skipped_in_a_row >= self.options.optimizer.max_skips:
            raise self.ranks.shared(self._diverged(work, share))
        window.tokens += work.tokens
        window.padded_tokens += work.padded_tokens
        window.flops, state.flops = window.flops + flops, state.flops + flops
        window.seconds += time.perf_counter() - start

    def _announce(self, work: Work) -> None:
        """Say how updates are made, and where they are long, how long: as soon as a part of the first one is done."""
        micro_batches, began = len(work.update.micro_batches), time.monotonic()
        logger.info("%s", describe_plan(work))
        if complaint := idle_devices(micro_batches, self.ranks.size):
            logger.warning("%s", complaint)

        def foretell(parts: int) -> None:
            if words := long_update(work.target_tokens, micro_batches, (time.monotonic() - began) * parts):
                logger.info("%s", words)

        if not self.options.compute.compile:  # then the first part takes much longer than the others
            self.gradient.after_first_part = foretell

    def _votes(self) -> tuple[float, ...]:
        """This rank's part of the `Totals` after the losses."""
        main, signals = self.ranks.is_main, self.signals
        minutes = (time.monotonic() - self.began) / 60 if main else 0.0
        save = signals.save or (main and self.save_dir.minutes_passed())
        return minutes, save, signals.stop == signal.SIGTERM, signals.stop == signal.SIGINT

    def _decide(self, totals: Totals) -> None:
        """Take note of what the ranks have agreed on."""
        self.state.minutes = totals.minutes
        self.state.out_of_memory = self.gradient.times_out_of_memory
        self.save_now = totals.save > 0
        self.signals.save = self.signals.save and not self.save_now
        self.stop_signal = signal.SIGTERM if totals.terminate else signal.SIGINT if totals.interrupt else 0

    def _step(self) -> bool:
        """Let the optimizer take its step; False where the gradient is not finite, and the step is skipped."""
        options, state = self.options.optimizer, self.state
        start = state.schedule_start
        until = self.options.stop.max_updates - start
        rate = learning_rate(state.update - start, options, self.options.model.d_model, until)
        norm = self.learner.step(state.update, rate)
        is_finite = math.isfinite(norm)
        self.window.rate, self.window.gradient_norm = rate, norm if is_finite else None
        if is_finite:
            state.skipped_in_a_row = 0
            return True
        state.skipped += 1
        state.skipped_in_a_row += 1
        logger.warning("update %d skipped: its gradient is not finite (learning rate %.3g)", state.update, rate)
        return False

    def _diverged(self, work: Work, share: list[tuple[int, Batch]]) -> RunError:
        """Why the run stops after too many skipped updates, with the sentences that did it in the last of them."""
        mine = [
            int(work.update.micro_batches[number][row])
            for number, batch in share
            for row in self.gradient.not_finite(self.state.update, number, batch, work.target_tokens)
        ]
        guilty = sorted(pair for pairs in self.ranks.gather(mine) for pair in pairs)
        of = sum(map(len, work.update.micro_batches))
        pairs = (
            f"{len(guilty)} of its {of} sentence pairs to blame: {self.split.lines.name(guilty)}"
            if guilty
            else "no pair by itself does it"
        )
        return RunError(
            f"{counted(self.state.skipped_in_a_row, 'update')} in a row had no finite gradient, the last is "
            f"{self.state.update} (learning rate {self.window.rate:.3g}; {pairs}): the run has diverged; the "
            "checkpoints before are intact. Lower --lr-scale or --lr, warm up longer, or set --clip-norm"
        )

    def _conclude(self) -> None:
        """What is due after an update: log line, validation, checkpoint."""
        checkpoints = self.options.checkpoints
        if self.pace.updates(self.state) == UPDATES_TO_MEASURE:
            logger.info("time left: %s", duration(self._minutes_left()))
        if self._is_due(checkpoints.log_every):
            self._log()
        if self._is_due(self.options.validation.validate_every) and not self.stop_signal:
            self._validate()
        if self.stop_signal:
            self._save(at_the_end=True)
        elif self._reason_to_stop():
            self._round_off()
        elif self.save_now or self.state.validation or self._is_due(checkpoints.save_every):
            self._save()

    def _round_off(self) -> None:
        """What the last updates of a run are still due at its end: a log line, a validation, a checkpoint."""
        if self.window.padded_tokens:
            self._log()
            self.saved = None  # a checkpoint of this update that has the line still to come is written anew
        if not self.state.validation:
            self._validate()
        self._save(at_the_end=True)

    def _reason_to_stop(self) -> str | None:
        if self.stop_signal:
            return signal.Signals(self.stop_signal).name
        return self.state.reason_to_stop(self.options.stop, self.validator.metric)

    def _validate(self) -> None:
        """Measure on the validation split, and remember whether it is the best so far."""
        if not self.validator.possible:
            return
        with self.learner.validating():
            results = self.validator.run(self.learner.model, self.ranks, give_up=lambda: self.signals.stop != 0)
        if results is None:  # made up for when the run goes on
            self.stop_signal = max(self.ranks.gather(self.signals.stop))
            return
        state = self.state
        state.validation = finite(results.values)
        value = state.validation[self.validator.metric]
        if value is not None and (state.best is None or self.validator.better(value, state.best)):
            state.best, state.validations_since_best = value, 0
        else:
            state.validations_since_best += 1
        self._record("valid", {"epoch": state.last_epoch, **state.validation, "best": state.best}, results.samples)
        self.saved = None  # a checkpoint of this update without the results is written anew

    def _save(self, at_the_end: bool = False) -> None:
        """Write a checkpoint. Where that fails, the run goes on and the next save tries again, a few times."""
        if self.saved == self.state.update:
            return
        failure = self.ranks.run_on_main(partial(self._write_checkpoint, self.learner.optimizer_tensors()))
        if failure is None:
            self.saved, self.save_failures = self.state.update, 0
            return
        self.save_failures += 1
        if at_the_end or self.save_failures >= self.options.checkpoints.max_save_failures:
            raise self.ranks.shared(RunError(f"{failure}; earlier checkpoints are as they were"))
        logger.warning("%s; earlier checkpoints are as they were, and the next save tries again", failure)

    def _write_checkpoint(self, optimizer: dict[str, Tensor]) -> str | None:
        """Save in the main process; returns what went wrong."""
        state = self.state
        state.scaler, state.window = self.learner.scaler.state_dict(), asdict(self.window)
        progress = {
            **asdict(state),
            "best_metric": self.validator.metric,
            "is_best": bool(state.validation) and state.validations_since_best == 0,
            **state.validation,
            "data": self.dataset.checksums(self.split.name),
            "validation_data": self.dataset.checksums(VALIDATION),
            "data_order_version": ORDER_VERSION,
            "schedule_version": SCHEDULE_VERSION,
            "options": self.options.to_dict(),
        }
        try:
            if self.metrics is not None:
                self.metrics.sync()  # the checkpoint is not to be ahead of them, even after a power cut
            self.save_dir.save(state.update, self.learner.checkpoint(progress, optimizer), self.validator.better)
        except (NmtkitError, OSError) as error:
            return str(error)
        return None

    def _resume(self) -> None:
        """Go on from the newest good checkpoint, if there is one."""
        state = resume(self.learner, self.save_dir, self.split.name, self.validator.metric, self.options, self.ranks)
        if state is not None:
            self.state, self.window, self.saved = state, restore(Window, state.window), state.update

    def _log(self) -> None:
        """Record the numbers of the updates since the last time."""
        state = self.state
        values = {
            "epoch": state.last_epoch,
            **self.window.averages(),
            "mfu": self.cost.utilization(self.window.flops, self.window.seconds),
            "lr": self.window.rate,
            "gradient_norm": self.window.gradient_norm,
            "skipped": state.skipped or None,
            "out_of_memory": state.out_of_memory or None,
            "peak_memory_gib": peak_memory(self.ranks.device),
            "minutes": round(state.minutes, 2),
            "minutes_left": self._minutes_left(),
        }
        self._record("train", values)
        self.window = Window()

    def _minutes_left(self) -> float:
        return self.pace.minutes_left(self.state, self.options.stop, self.updates_an_epoch)

    def _record(self, event: str, values: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        if self.metrics is not None:
            self.metrics.write(event, self.state.update, values, samples)

    def _summarize(self) -> None:
        options, model = self.options, self.learner.model
        precision = str(self.learner.precision).removeprefix("torch.")
        for line in (
            describe_model(model),
            describe_data(self.dataset, self.split.name),
            describe_run(self.state, options, str(self.ranks), precision),
            describe_checkpoints(model, options),
        ):
            logger.info("%s", line)
        if not self.validator.possible:
            logger.info("validation: no split '%s' (see --validpref); no checkpoint is best", VALIDATION)
        warmup, updates = options.optimizer.warmup_updates, options.stop.max_updates - self.state.schedule_start
        if 0 < updates < warmup:
            logger.warning("the run ends before --warmup-updates %d: the learning rate never reaches its peak", warmup)

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.update % every == 0


def _check_positions(dataset: Dataset, config: TransformerConfig) -> None:
    """UserError where a sentence to train or to validate on is longer than learned positions reach."""
    if config.positions != "learned":
        return
    for split in (dataset.split(name) for name in dataset.split_names if name in ("train", VALIDATION)):
        split.check_lengths("--max-positions", config.max_positions, "take --positions sinusoidal")
