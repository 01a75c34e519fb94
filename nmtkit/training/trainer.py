"""The training loop: fit → update → micro-batch → validate → save.

A run is a function of its options, its data and the update number. Data order follows from (seed, epoch), the masks of
dropout from (seed, update, micro-batch), the learning rate from the update; so a run that is stopped at any checkpoint
and started again ends with the weights that it would have had.
"""

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint, collect_weights, load_weights
from nmtkit.data.batch import Batch, collate
from nmtkit.data.batching import Batcher, Update
from nmtkit.data.config import DatasetConfig
from nmtkit.data.corpus import Dataset
from nmtkit.errors import RunError, UserError
from nmtkit.log import Progress, finite, logger
from nmtkit.model.config import DeviceConfig, ModelConfig
from nmtkit.model.precision import resolve_device, resolve_precision
from nmtkit.model.transformer import Transformer
from nmtkit.training.config import (
    BatchConfig,
    CheckpointConfig,
    LoadingConfig,
    OptimizerConfig,
    StopConfig,
    ValidationConfig,
)
from nmtkit.training.loss import perplexity, projected_cross_entropy
from nmtkit.training.metrics import MetricsWriter
from nmtkit.training.optim import learning_rate, load_optimizer, make_optimizer, optimizer_tensors
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.validation import VALIDATION, Validator
from nmtkit.vocab import PAD


@dataclass(frozen=True)
class TrainingOptions:
    """All options of a training run."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    loading: LoadingConfig = field(default_factory=LoadingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All options as plain values, group by group."""
        return {part.name: getattr(self, part.name).to_dict() for part in fields(self)}


@dataclass
class RunState:
    """How far a run has come: what a checkpoint keeps beside weights and optimizer, as plain JSON values."""

    update: int = 0
    epoch: int = 1
    updates_in_epoch: int = 0
    minutes: float = 0.0
    skipped: int = 0  #: updates with a gradient that was not finite
    skipped_in_a_row: int = 0
    best: float | None = None  #: best validation so far, and how many there have been since
    validations_since_best: int = 0
    validation: dict[str, float | None] = field(default_factory=dict)  #: results of the validation at this very update
    scaler: dict[str, Any] = field(default_factory=dict)  #: loss scaling, with fp16 only


@dataclass
class Window:
    """Sums over the updates since the last log line."""

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    tokens: int = 0  #: of both sides
    padded_tokens: int = 0
    seconds: float = 0.0


def train(folder: Path, options: TrainingOptions) -> None:
    """Train a model on a dataset folder; goes on from the newest checkpoint in the save folder, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("this version trains on one device: start it without torchrun, or with --nproc-per-node 1")
    if options.device.threads:
        torch.set_num_threads(options.device.threads)
    Trainer(Dataset.open(folder, options.dataset.verify), options).fit()


class Trainer:
    """One training run on one device."""

    def __init__(self, dataset: Dataset, options: TrainingOptions) -> None:
        self.dataset, self.options = dataset, options
        self.device = resolve_device(options.device.device)
        self.precision = resolve_precision(options.device.precision, self.device)
        self.model_config = options.model.for_vocabularies(dataset.joined)
        self.split = dataset.split("train")
        _check_positions(dataset, self.model_config)
        batches = options.batches
        self.batcher = Batcher(
            self.split.source.lengths, self.split.target.lengths, batches.batch_tokens, batches.max_tokens, batches.seed
        )
        torch.manual_seed(batches.seed)
        self.model = Transformer(self.model_config, len(dataset.source.vocab), len(dataset.target.vocab))
        self.model.to(self.device)
        self.optimizer = make_optimizer(self.model, options.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == torch.float16)
        self.validator = Validator(dataset, options.validation, batches.max_tokens, options.optimizer.label_smoothing)
        self.state = RunState()
        self.window = Window()
        self.save_dir = SaveDir(options.checkpoints)

    def fit(self) -> None:
        """Train until an option says to stop; validates and saves on the way and at the end."""
        with self.save_dir.locked():
            self._fit()

    def _fit(self) -> None:
        self._resume()
        self._summarize()
        stop = self._reason_to_stop()
        self.save_dir.prepare(self.options.to_dict())
        checkpoints = self.options.checkpoints
        with (
            MetricsWriter(checkpoints.save_dir, self.state.update, checkpoints.tensorboard) as self.metrics,
            Progress("training", self.options.stop.max_updates, "updates", self.state.update, lines=False) as progress,
        ):
            updates = self._updates()
            while stop is None:
                self._update(*next(updates))
                if self._is_due(self.options.checkpoints.log_every):
                    self._log()
                if self._is_due(self.options.validation.validate_every):
                    self._validate()
                stop = self._reason_to_stop()
                self._save_if_due(at_the_end=stop is not None)
                progress.advance()
            if self.window.padded_tokens:
                self._log()
        logger.info("stopped after update %d: %s", self.state.update, stop)

    def _updates(self) -> Iterator[tuple[Update, Iterator[Batch]]]:
        """The updates to come, each with its micro-batches. Threads prepare those of the next one meanwhile."""
        updates = self.batcher.updates(self.state.epoch, self.state.updates_in_epoch)
        make_batch = partial(collate, self.split)
        workers = self.options.loading.num_workers
        if workers == 0:
            yield from ((update, map(make_batch, update.micro_batches)) for update in updates)
            return
        with ThreadPoolExecutor(workers) as pool:
            prepared = ((update, pool.map(make_batch, update.micro_batches)) for update in updates)
            for now, following in pairwise(prepared):
                del following  # it only had to be begun
                yield now

    def _update(self, update: Update, batches: Iterator[Batch]) -> None:
        """One step of the optimizer: the gradient of all its micro-batches, divided once by all its target tokens."""
        start = time.perf_counter()
        state, window = self.state, self.window
        state.update += 1
        state.epoch, state.updates_in_epoch = update.epoch, update.number
        if update.number == update.of:
            state.epoch, state.updates_in_epoch = update.epoch + 1, 0
        state.validation = {}

        tokens = sum(int(self.split.target.lengths[micro].sum()) for micro in update.micro_batches)
        sums = torch.zeros(2, device=self.device)  # loss and negative log-likelihood of all target tokens
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        for number, batch in enumerate(batches):
            self._seed(state.update, number)
            sums += self._micro_batch(batch.to(self.device), tokens)
            window.tokens += batch.source_tokens + batch.target_tokens
            window.padded_tokens += batch.padded_tokens
        self._step()

        if not state.skipped_in_a_row:
            loss, nll = sums.tolist()
            window.loss, window.nll = window.loss + loss, window.nll + nll
            window.target_tokens += tokens
        elapsed = time.perf_counter() - start
        window.seconds += elapsed
        state.minutes += elapsed / 60

    def _micro_batch(self, batch: Batch, update_tokens: int) -> Tensor:
        """Forward and backward of one micro-batch; returns its sums (loss, nll)."""
        with self._autocast():
            hidden = self.model.decode(batch.tgt_in, self.model.encode(batch.src))  # (B, T, D)
            real = batch.tgt_out != PAD
            loss, nll = projected_cross_entropy(
                hidden[real], self.model.output_matrix, batch.tgt_out[real], self.options.optimizer.label_smoothing
            )
        self.scaler.scale(loss / update_tokens).backward()  # type: ignore[no-untyped-call]
        return torch.stack((loss.detach(), nll))

    def _step(self) -> None:
        """Let the optimizer take its step, or skip it where the gradient is not finite."""
        options, state = self.options.optimizer, self.state
        rate = learning_rate(state.update, options, self.model_config.d_model, self.options.stop.max_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.unscale_(self.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip_norm or math.inf))
        if math.isfinite(norm):
            state.skipped_in_a_row = 0
            self.scaler.step(self.optimizer)
        else:
            state.skipped += 1
            state.skipped_in_a_row += 1
            logger.warning("update %d skipped: its gradient is not finite (learning rate %.3g)", state.update, rate)
            if state.skipped_in_a_row >= options.max_skips:
                raise RunError(
                    f"{options.max_skips} updates in a row had no finite gradient, the last is {state.update} "
                    f"(learning rate {rate:.3g}): the run has diverged; the checkpoints before are intact. "
                    "Lower --lr-scale or --lr, warm up longer, or set --clip-norm"
                )
        self.scaler.update()
        self.gradient_norm, self.rate = norm, rate

    def _validate(self) -> None:
        """Measure on the validation split, and remember whether it is the best so far."""
        if not self.validator.possible:
            return
        with self._autocast():
            results = finite(self.validator.run(self.model, self.device))
        state = self.state
        state.validation = results
        value = results[self.validator.metric]
        if value is not None and (state.best is None or self.validator.better(value, state.best)):
            state.best, state.validations_since_best = value, 0
        else:
            state.validations_since_best += 1
        self.metrics.write("valid", state.update, {"epoch": state.epoch, **results, "best": state.best})
        self._save()

    def _reason_to_stop(self) -> str | None:
        state, stop = self.state, self.options.stop
        if state.update >= stop.max_updates:
            return f"--max-updates {stop.max_updates}"
        if stop.max_epochs is not None and state.epoch > stop.max_epochs:
            return f"--max-epochs {stop.max_epochs}"
        if stop.max_minutes is not None and state.minutes >= stop.max_minutes:
            return f"--max-minutes {stop.max_minutes:g}"
        if stop.patience is not None and state.validations_since_best >= stop.patience:
            return f"--patience {stop.patience}: that many validations without a new best {self.validator.metric}"
        return None

    def _save_if_due(self, at_the_end: bool) -> None:
        """A checkpoint by updates, by minutes, and at the end, where the model is also validated a last time."""
        every = self.options.checkpoints.save_every
        if at_the_end and not self.state.validation:
            self._validate()
        if at_the_end or self.save_dir.minutes_passed() or (every is not None and self._is_due(every)):
            self._save()

    def _save(self) -> None:
        state = self.state
        if self.save_dir.newest == state.update:
            return
        state.scaler = self.scaler.state_dict()
        progress = {
            **asdict(state),
            "best_metric": self.validator.metric,
            "is_best": bool(state.validation) and state.validations_since_best == 0,
            **state.validation,
            "data": self.dataset.checksums(self.split.name),
            "options": self.options.to_dict(),
        }
        checkpoint = Checkpoint(
            model_config=self.model_config,
            weights=collect_weights(self.model),
            source_language=self.dataset.source_language,
            target_language=self.dataset.target_language,
            source=self.dataset.source,
            target=self.dataset.target,
            progress=progress,
            optimizer=optimizer_tensors(self.optimizer, self.model),
        )
        self.save_dir.save(state.update, checkpoint, self.validator.better)

    def _resume(self) -> None:
        """Take up weights, optimizer and place in the data from the newest good checkpoint, if there is one."""
        checkpoint = self.save_dir.load_newest()
        if checkpoint is None:
            return
        if checkpoint.model_config != self.model_config:
            raise UserError(
                f"{self.options.checkpoints.save_dir} holds checkpoints of another model "
                f"({_first_difference(checkpoint.model_config.to_dict(), self.model_config.to_dict())}): "
                "take the options it was started with, or another --save-dir"
            )
        if (checkpoint.source.vocab, checkpoint.target.vocab) != (self.dataset.source.vocab, self.dataset.target.vocab):
            raise UserError(
                f"{self.options.checkpoints.save_dir} holds checkpoints of another vocabulary than "
                f"{self.dataset.folder}: take the dataset it was started with, or another --save-dir"
            )
        progress = checkpoint.progress
        data = self.dataset.checksums(self.split.name)
        if progress.get("data", data) != data:
            raise UserError(
                f"{self.options.checkpoints.save_dir} holds checkpoints of a run on other data than "
                f"{self.dataset.folder}: take the dataset it was started with, or another --save-dir"
            )
        self.state = RunState(**{part.name: progress[part.name] for part in fields(RunState)})
        if progress["best_metric"] != self.validator.metric:
            self.state.best, self.state.validations_since_best = None, 0
            self.save_dir.forget_validations()
        load_weights(self.model, checkpoint.weights)
        load_optimizer(self.optimizer, self.model, checkpoint.optimizer or {})
        if self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)
        for group in ("batches", "optimizer"):
            before, now = progress["options"][group], getattr(self.options, group).to_dict()
            if before != now:
                logger.warning("going on with other options than before: %s", _first_difference(before, now))
        logger.info("going on after update %d (epoch %d)", self.state.update, self.state.epoch)

    def _log(self) -> None:
        """Record the numbers of the updates since the last time."""
        window = self.window
        tokens = window.target_tokens or math.nan  # none where every update was skipped
        values = {
            "epoch": self.state.epoch,
            "loss": window.loss / tokens,
            "nll": window.nll / tokens,
            "ppl": perplexity(window.nll / tokens),
            "lr": self.rate,
            "gradient_norm": self.gradient_norm,
            "tokens_per_second": round(window.target_tokens / window.seconds),
            "padding": 1 - window.tokens / window.padded_tokens,
            "skipped": self.state.skipped or None,
            "minutes": round(self.state.minutes, 2),
        }
        if self.device.type == "cuda":
            values["peak_memory_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        self.metrics.write("train", self.state.update, values)
        self.window = Window()

    def _summarize(self) -> None:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        train = self.split
        logger.info(
            "model: %.1f M parameters (%s-%s layers, d_model %d), vocabulary %d; data: %d pairs, %d target tokens; "
            "device: %s, %s; updates: %d done, %d to go",
            parameters / 1e6,
            self.model_config.encoder_layers,
            self.model_config.decoder_layers,
            self.model_config.d_model,
            len(self.dataset.target.vocab),
            len(train),
            train.target.tokens,
            self.device,
            str(self.precision).removeprefix("torch."),
            self.state.update,
            max(0, self.options.stop.max_updates - self.state.update),
        )

    def _is_due(self, every: int) -> bool:
        return self.state.update % every == 0

    def _seed(self, update: int, micro_batch: int) -> None:
        """Make the dropout masks of a micro-batch a function of the run's seed and its own number."""
        sequence = np.random.SeedSequence((self.options.batches.seed, update, micro_batch))
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)


def _check_positions(dataset: Dataset, config: ModelConfig) -> None:
    """UserError where a sentence to train or to validate on is longer than learned positions reach."""
    if config.positions != "learned":
        return
    for split in (dataset.split(name) for name in dataset.split_names if name in ("train", VALIDATION)):
        longest = max(int(side.lengths.max(initial=0)) for side in (split.source, split.target))
        if longest > config.max_positions:
            raise UserError(
                f"--max-positions {config.max_positions}: split '{split.name}' has a sentence of {longest} tokens: "
                f"give at least {longest}, or take --positions sinusoidal"
            )


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = {**before, **now}
    return next(
        f"{name} was {before.get(name)}, is {now.get(name)}" for name in names if before.get(name) != now.get(name)
    )
