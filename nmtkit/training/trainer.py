"""The training loop: fit → update → validate → save.

Options, data and the update number determine a run. The data order depends on (seed, epoch), dropout masks on (seed,
update, micro-batch), and the learning rate on the update. A run that resumes from any checkpoint therefore ends with
the weights of an uninterrupted run. All ranks have the same model and make the same decisions, from sums over ranks.
"""

import contextlib
import math
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmtkit.console.log import Progress, finite_or_none, logger, on_broken_pipe, working
from nmtkit.data.alignments import Alignments
from nmtkit.errors import Interrupted, NmtkitError, RunError
from nmtkit.machine.host_copy import HostCopy
from nmtkit.machine.memory import keep_freed_memory, limit_kernel_caches
from nmtkit.machine.precision import resolve_device
from nmtkit.machine.threads import set_threads
from nmtkit.storage.outputs import refuse_dataset
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.training.capacity import with_batches_of_device
from nmtkit.training.compiling import is_compile_error
from nmtkit.training.config import TrainingOptions
from nmtkit.training.construction import memory_for_model
from nmtkit.training.cost import Cost
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.interruption import STOPS, Signals, agreed_stop
from nmtkit.training.learner import Learner
from nmtkit.training.loader import Loader, Work, pair_sampling
from nmtkit.training.optim import learning_rate, optimizer_tensors, schedule_free_sums
from nmtkit.training.planning import better_of_average_and_best, with_plan
from nmtkit.training.ranks import Ranks, join
from nmtkit.training.resuming import resume
from nmtkit.training.run_log import OnMetrics, RunLog
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.state import RunState, Window, is_interim, make_record, restore
from nmtkit.training.summary import describe_dry_run, next_command, translate_command
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION, Validator, validate
from nmtkit.wording import counted, first_line

_SECONDS_TO_MEASURE = 5.0  # for --budget
_MAX_FAILED_SAVES = 3  # in a row


@dataclass(frozen=True)
class Outcome:
    """The outcome of an update, which a GPU may still be computing while the host prepares the next one."""

    update: int
    learning_rate: float
    numbers: HostCopy  #: loss and negative log-likelihood of each dataset, then the norm of the gradient
    target_tokens: Sequence[int]  #: by dataset


def train(
    folder: Path,
    options: TrainingOptions,
    others: Sequence[Path] = (),
    on_metrics: OnMetrics | None = None,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Train a model on a dataset folder, mixed with the dataset folders `others` in the proportions of the options.

    Resumes from the newest checkpoint in the save folder. Under torchrun, the processes of the run train together. The
    main process calls `on_metrics` with each row of metrics.jsonl: `event`, `update`, and the numbers of that event.
    --budget chooses all options that are not in `given`. Raises Interrupted after a signal or if stderr has no reader.
    """
    set_threads(options.device.threads)
    with join(resolve_device(options.device.device)) as ranks:
        if ranks.device.type == "cpu":
            keep_freed_memory()
            limit_kernel_caches()
        with working(f"opening {folder}"):
            folders, verify = [folder, *others], options.reading.verify
            data = ranks.run_on_all(lambda: TrainingData.open(folders, verify, options.batches))
        if options.stop.budget:

            def measure(trial: TrainingOptions) -> float:
                with memory_for_model(data.first, trial, ranks.device):
                    return Trainer(data, with_batches_of_device(data, trial, ranks), ranks).measure(_SECONDS_TO_MEASURE)

            options = with_plan(data, options, given or {}, ranks, measure)
        with memory_for_model(data.first, options, ranks.device):
            options = with_batches_of_device(data, options, ranks)
            with working("creating the model"):
                trainer = ranks.run_on_all(lambda: Trainer(data, options, ranks, on_metrics))
            ranks.check_same({**options.common(), "--precision": trainer.learner.precision, **data.checksums()})
            trainer.dry_run() if options.stop.dry_run else trainer.fit()


class Trainer:
    """One training run, on one of its ranks."""

    def __init__(
        self, data: TrainingData, options: TrainingOptions, ranks: Ranks, on_metrics: OnMetrics | None = None
    ) -> None:
        self.data, self.options, self.ranks = data, options, ranks
        data.check_lengths(options.batches, options.model)
        if tensorboard := options.checkpoints.tensorboard:
            refuse_dataset(tensorboard, f"--tensorboard {tensorboard}")
        guide = options.optimizer.guided_alignment
        self.loader = Loader(
            data.splits,
            data.mixture(options.batches),
            ranks.rank,
            ranks.size,
            options.compute.num_workers,
            pair_sampling(data.datasets, data.splits, options),
            pinned=ranks.device.type == "cuda",
            packing=options.batches.packing == "on",
            max_tokens=options.batches.max_tokens,
            alignments=Alignments(guide, data.first, data.splits[0]) if guide else None,
        )
        self.learner = Learner(data.first, data.languages, options, ranks)
        model, precision = self.learner.model.config, self.learner.precision
        passes = 2 if options.optimizer.r_drop else 1
        self.cost = Cost(model, len(data.first.target.vocab), ranks, precision, passes)
        self.validator = Validator(data.first, options)
        self.other_validators = {
            name: Validator(dataset, options)
            for name, dataset in zip(data.names[1:], data.datasets[1:], strict=True)
            if VALIDATION in dataset.split_names
        }
        self.state = RunState()
        self.window = Window()
        self.outcomes: deque[Outcome] = deque()  # of updates not yet counted in `state` and `window`
        self.signals = Signals(second_kills=ranks.size == 1, is_main=ranks.is_main)
        self.stop_signal = 0  # the signal that all ranks have agreed to stop for; 0: none
        self.save_dir = SaveDir(options.checkpoints)
        self.saved: int | None = None  # update of the newest complete checkpoint; None to write it again
        self.failed_saves = 0  # in a row
        self.log = RunLog(options, ranks, self.cost, self.save_dir, on_metrics)

    def fit(self) -> None:
        """Train until an option or a signal stops the run; validate and save during the run and at its end."""
        ranks = self.ranks
        with self.signals, on_broken_pipe(self.signals.note_broken_pipe), contextlib.ExitStack() as stack:
            ranks.run_on_main(lambda: stack.enter_context(self.save_dir.locked()))
            self._resume()
            ranks.run_on_main(lambda: self.save_dir.prepare(self.options.to_dict()))
            ranks.run_on_main(lambda: self.log.open_metrics(self.state.update, stack))
            try:
                self._fit()
            except RuntimeError as error:
                if not is_compile_error(error):
                    raise
                raise self._compile_error(error) from error

    def _compile_error(self, error: RuntimeError) -> NmtkitError:
        """Create the error after a failed compilation. A signal to the process group also kills the C++ compiler."""
        if stop := self.signals.stop:
            name = signal.Signals(stop).name
            return Interrupted(f"{name} while compiling: run the same command to resume from the last checkpoint", stop)
        return RunError(f"--compile: torch cannot compile the model ({first_line(error)}): run again without --compile")

    def dry_run(self) -> None:
        """Check everything, and time one update: the second, or the next that is not skipped. Writes nothing."""
        self.ranks.run_on_main(self.save_dir.check)
        self._resume()
        self.measure()
        logger.info("%s", describe_dry_run(self.window, self.log.minutes_left(self.state)))

    def measure(self, seconds: float = 0.0) -> float:
        """Return the target tokens per second of training, measured over `seconds` and at least one update. Half as
        many seconds come first: updates are slow until kernels for most lengths are compiled."""
        updates = self._begin()
        for text, least in (("updates to warm up", seconds / 2), ("updates to measure", seconds)):
            self.window = Window()
            self.log.start(self.state, self.data)
            with working(text):
                while not self.window.target_tokens or self.window.seconds < least:
                    self._update(updates)
                    self._count_all()
        return self.window.target_tokens / self.window.seconds

    def _resume(self) -> None:
        state = resume(self.learner, self.save_dir, self.data, self.validator.metric, self.options, self.ranks)
        if state is not None:
            self.state, self.window, self.saved = state, restore(Window, state.window), state.update
        self.log.summarize(self.state, self.data, self.learner, self.validator.possible)

    def _begin(self) -> Iterator[Work]:
        """Prepare to train after the weights are loaded; return the updates."""
        for validator in (self.validator, *self.other_validators.values()):
            self.ranks.run_on_all(partial(validator.check_memory, self.learner.model))
        self.gradient = self._gradient()
        self.began = time.monotonic() - 60 * self.state.minutes
        before = self.state if self.ranks.is_main else RunState()
        self.device_began = time.monotonic() - 60 * before.device_minutes
        self.processor_began = time.process_time() - 60 * before.processor_minutes
        self.log.start(self.state, self.data)
        return self.loader.updates(self.state.position)

    def _gradient(self) -> UpdateGradient:
        """Create the gradient. This broadcasts the main process's weights, so they must be loaded first."""
        learner, seed, datasets = self.learner, self.options.batches.seed, len(self.data.datasets)
        gradient = UpdateGradient(learner.loss, self.ranks, learner.precision, learner.scaler, seed, datasets)
        gradient.memory_limit = self.state.memory_limit
        gradient.times_out_of_memory = self.state.out_of_memory
        return gradient

    def _fit(self) -> None:
        updates = self._begin()
        if self._is_validation_due() and not self.state.validation:
            self._validate()  # a signal had stopped the run before
            self._save()
        if self._reason_to_stop() and not self.stop_signal:
            logger.info("nothing is left to train: update %d was the last one", self.state.update)
            self._finish()  # a signal had stopped the run before
        most = self.options.stop.max_updates
        with Progress("training", most, "updates", self.state.update, notes=True) as progress:
            while not self._reason_to_stop():
                self._update(updates)
                progress.advance(note=self.log.after_update(self.state, self.window))
                self._after_update()
        next = "" if self.stop_signal else self._next_command()
        self.log.finish(self.state, self._reason_to_stop(), next)
        if self.stop_signal:
            update = f"update {self.state.update} is done and saved; run the same command to resume"
            raise self.ranks.report_once(Interrupted(f"{self._reason_to_stop()}: {update}", self.stop_signal))

    def _next_command(self) -> str:
        """The command to run after training. With --budget, this writes the average of the last checkpoints."""
        if not self.options.stop.budget:
            return next_command(self.save_dir.folder, self.save_dir.regular())
        result = better_of_average_and_best(self.save_dir, self.learner, self.validator, self.state.best, self.ranks)
        return translate_command(result)

    def _update(self, updates: Iterator[Work]) -> None:
        """Take one optimizer step, with the gradient of all micro-batches divided once by the update's tokens."""
        start = time.perf_counter()
        work = next(updates)
        share = work.share()
        if self.loader.sampling:
            work, flops = work.with_exact_counts(share, self.ranks), self.cost.flops_of_sampled(share)
        else:
            flops = self.cost.flops(*work.lengths)
        state, window = self.state, self.window
        self.log.plan(work)
        window.waiting += time.perf_counter() - start

        state.begin_update(work.update)
        tokens = sum(work.target_tokens)
        losses, votes = self.gradient.compute(state.update, share, tokens, self._votes(), work.datasets)
        self._agree(votes)
        start_of_schedule, options = state.schedule_start, self.options
        left = options.stop.max_updates - start_of_schedule
        rate = learning_rate(state.update - start_of_schedule, options.optimizer, options.model.d_model, left)
        norm = self.learner.step(state.update, rate)
        numbers = HostCopy(torch.cat((losses, norm.double().unsqueeze(0))))
        self.outcomes.append(Outcome(state.update, rate, numbers, work.target_tokens))
        while len(self.outcomes) > self._ahead():
            self._count(self.outcomes.popleft())
        window.tokens += work.tokens
        window.padded_tokens += work.padded_tokens
        window.flops, state.flops = window.flops + flops, state.flops + flops
        window.seconds += time.perf_counter() - start

    def _ahead(self) -> int:
        """Return how many updates the device may still be computing while the host prepares the next: none after a
        skipped update, so that the run stops exactly after `--max-skips`."""
        may_diverge = self.state.skipped_in_a_row or self.options.optimizer.max_skips == 1
        return 0 if may_diverge or self.ranks.device.type == "cpu" else 1

    def _count(self, outcome: Outcome) -> None:
        window, state = self.window, self.state
        *losses, norm = outcome.numbers.read()
        is_finite = math.isfinite(norm)
        window.rate, window.gradient_norm = outcome.learning_rate, norm if is_finite else None
        if not is_finite:
            self._count_skipped(outcome)
            return
        state.skipped_in_a_row = 0
        window.loss, window.nll = window.loss + sum(losses[::2]), window.nll + sum(losses[1::2])
        window.target_tokens += sum(outcome.target_tokens)
        if self.data.is_mixed:
            window.add_losses(self.data.names, losses[::2], outcome.target_tokens)

    def _count_skipped(self, outcome: Outcome) -> None:
        self.state.skipped += 1
        self.state.skipped_in_a_row += 1
        logger.warning(
            "update %d skipped: its gradient is not finite (learning rate %.3g)", outcome.update, outcome.learning_rate
        )
        if self.state.skipped_in_a_row >= self.options.optimizer.max_skips:
            skips = f"{counted(self.state.skipped_in_a_row, 'update')} in a row had no finite gradient"
            where = f"the last is {outcome.update} (learning rate {outcome.learning_rate:.3g})"
            raise self.ranks.report_once(RunError(f"{skips}, {where}: {self._divergence()}"))

    def _count_all(self) -> None:
        """Wait until the device has computed all updates, then count them."""
        start = time.perf_counter()
        while self.outcomes:
            self._count(self.outcomes.popleft())
        self.window.seconds += time.perf_counter() - start

    def _votes(self) -> list[float]:
        """Return values whose sums over all ranks decide for all of them: minutes on the main process's clock, over all
        devices and of all CPUs, and the votes to save and for each of `STOPS`."""
        main, signals = self.ranks.is_main, self.signals
        minutes = (time.monotonic() - self.began) / 60 if main else 0.0
        device_minutes = (time.monotonic() - self.device_began) / 60
        processor_minutes = (time.process_time() - self.processor_began) / 60
        save = signals.save or (main and self.save_dir.minutes_passed())
        stops = (signals.stop == number for number in STOPS)
        return [minutes, device_minutes, processor_minutes, save, *stops]

    def _agree(self, votes: Sequence[float]) -> None:
        self.state.minutes, self.state.device_minutes, self.state.processor_minutes, save, *stops = votes
        self.state.out_of_memory = self.gradient.times_out_of_memory
        self.state.memory_limit = self.gradient.memory_limit
        self.save_now = save > 0
        self.signals.save = self.signals.save and not self.save_now
        self.stop_signal = agreed_stop([number for number, ranks in zip(STOPS, stops, strict=True) if ranks])

    def _after_update(self) -> None:
        checkpoints = self.options.checkpoints
        is_due = self.state.is_due(checkpoints.save_every, checkpoints.save_epochs)
        if self.state.is_due(checkpoints.log_every):
            self._log()
        if self._is_validation_due() and not self.stop_signal:
            self._validate()
        if self.stop_signal:
            self._save(last=True)
        elif self._reason_to_stop():
            self._finish()
        elif self.save_now or self.state.validation or is_due:
            self._save()

    def _finish(self) -> None:
        """Log, validate and save at the end of a run, unless the last update has done so."""
        if self.window.padded_tokens:
            self._log()
            self.saved = None  # rewrite the checkpoint, which still expects this log line
        if self.state.is_interim and not is_interim(self.state, self.validator.metric, self.options):
            self.saved = None  # a signal saved it before --max-updates made it the last update
        if not self.state.validation:
            self._validate()
        self._save(last=True)
        if self.state.validation and self.state.validation["valid_loss"] is None:
            problem = f"the loss of the last validation, after update {self.state.update}, is not finite"
            raise self.ranks.report_once(RunError(f"{problem}: {self._divergence()}"))

    def _validate(self) -> None:
        """Validate, and record whether the first dataset's result is the best so far."""
        if not self.validator.possible:
            return
        try:
            with self.learner.validating():
                loss, stopped = self.learner.loss, lambda: self.signals.stop != 0
                results = validate(self.validator, self.other_validators, loss, self.ranks, stopped)
        except NmtkitError:  # raised by all ranks together
            self._save(last=True)
            raise
        if results is None:  # stopped: a resumed run repeats the validation
            self.stop_signal = agreed_stop(self.ranks.gather(self.signals.stop))
            return
        epochs = self.options.validation.validate_epochs
        counts = epochs is None or self.state.is_due(None, epochs)
        values, metric, better = finite_or_none(results.values), self.validator.metric, self.validator.better
        self.state.record_validation(values, metric, better, counts)
        self.log.record_validation(self.state, results.samples)
        self.saved = None  # rewrite a checkpoint of this update that lacks the results

    def _save(self, last: bool = False) -> None:
        """Write a checkpoint, unless this update has one. Collective.

        If writing fails, warn, and let the next save try again. Raises RunError if the `last` save or several in a row
        fail, or if a weight is not finite.
        """
        self._count_all()
        update = self.state.update
        if self.saved == update:
            return
        for name, weight in self.learner.model.named_parameters():  # equal on all ranks
            if not weight.isfinite().all():
                message = f"{name} contains NaN or infinity after update {update}: {self._divergence()}"
                raise self.ranks.report_once(RunError(message))
        optimizer = optimizer_tensors(self.learner.optimizer, self.learner.model)
        failure = self.ranks.run_on_main(lambda: self._write(optimizer))
        if failure is None:
            self.saved, self.failed_saves = update, 0
            return
        self.failed_saves += 1
        if last or self.failed_saves >= _MAX_FAILED_SAVES:
            has_earlier = list_checkpoints(self.save_dir.folder)
            left = "earlier checkpoints are intact" if has_earlier else "there is no earlier checkpoint"
            raise self.ranks.report_once(RunError(f"{failure}; {left}"))
        logger.warning("%s; the next save tries again", failure)

    def _write(self, optimizer: dict[str, torch.Tensor]) -> str | None:
        """Save in the main process; return the error message, None on success."""
        state, learner = self.state, self.learner
        state.scaler, state.schedule_free = learner.scaler.state_dict(), schedule_free_sums(learner.optimizer)
        record = make_record(state, self.window, self.validator.metric, self.data, self.options)
        try:
            if self.log.metrics is not None:
                self.log.metrics.sync()  # a checkpoint is never ahead of its metrics
            with working(f"writing checkpoint {state.update}"):
                self.save_dir.save(state.update, learner.checkpoint(record, optimizer), self.validator.better)
        except (NmtkitError, OSError) as error:
            return str(error)
        return None

    def _divergence(self) -> str:
        """Return the advice at the end of the error message of a diverged run."""
        if any(update < self.state.update for update, _ in list_checkpoints(self.save_dir.folder)):
            left = "earlier checkpoints are intact. Lower"
        else:
            left = "it has no earlier checkpoint. Use a different --save-dir, and lower"
        return f"the run has diverged; {left} --lr-scale or --lr, warm up longer, or set --clip-norm"

    def _log(self) -> None:
        self._count_all()
        self.log.record_updates(self.state, self.window, self.ranks.device)
        self.window = Window()

    def _reason_to_stop(self) -> str | None:
        if self.stop_signal:
            return signal.Signals(self.stop_signal).name
        return self.state.reason_to_stop(self.options.stop, self.validator.metric)

    def _is_validation_due(self) -> bool:
        validation = self.options.validation
        return self.state.is_due(validation.updates, validation.validate_epochs)
