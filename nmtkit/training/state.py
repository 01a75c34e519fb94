"""The progress of a run, and its record in checkpoints."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from nmtkit.data.batching import ORDER_VERSION, DataPosition
from nmtkit.data.mixture import MixedUpdate
from nmtkit.training.config import StopConfig, TrainingOptions
from nmtkit.training.loss import LOSS_VERSION, perplexity
from nmtkit.training.optim import SCHEDULE_VERSION
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION
from nmtkit.wording import counted

T = TypeVar("T", "Window", "RunState")


@dataclass
class Window:
    """Sums over the updates since the last log line, with learning rate and gradient norm of the last update."""

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    tokens: int = 0  #: of both sides
    padded_tokens: int = 0
    seconds: float = 0.0
    waiting: float = 0.0  #: seconds spent waiting for micro-batches, included in `seconds`
    flops: int = 0  #: operations of the model, without padding
    rate: float = 0.0
    gradient_norm: float | None = None  #: None if not finite
    datasets: dict[str, tuple[float, int]] = field(default_factory=dict)  #: loss and target tokens, if several

    def add_losses(self, names: Sequence[str], losses: Sequence[float], tokens: Sequence[int]) -> None:
        """Add the loss, in nats, and the target tokens of each dataset in an update."""
        for name, loss, count in zip(names, losses, tokens, strict=True):
            before = self.datasets.get(name, (0.0, 0))
            self.datasets[name] = before[0] + loss, before[1] + count

    def averages(self) -> dict[str, float]:
        """Return means per token and per second, by name, for a log line; NaN if every update was skipped."""
        tokens = self.target_tokens or math.nan
        return {
            "loss": self.loss / tokens,
            "nll": self.nll / tokens,
            "ppl": perplexity(self.nll / tokens),
            "tokens_per_second": round(self.target_tokens / self.seconds),
            "padding": 1 - self.tokens / self.padded_tokens,
            "waiting": self.waiting / self.seconds,
        }

    def by_dataset(self) -> dict[str, float | None]:
        """Return the mean loss and the target tokens of each dataset, by metric. Without tokens, a loss is None."""
        values: dict[str, float | None] = {}
        for name, (loss, tokens) in self.datasets.items():
            values[f"train_{name}_loss"] = loss / tokens if tokens else None
            values[f"train_{name}_tokens"] = tokens
        return values


@dataclass
class RunState:
    """The progress of a run, as plain JSON values: a checkpoint contains it, with weights and optimizer state."""

    update: int = 0
    epoch: int = 1  #: epoch of the first dataset that the next update belongs to
    part: int = 0  #: part of the epoch in which the next update is planned
    updates_in_part: int = 0
    updates_in_epoch: int = 0
    others: list[DataPosition] = field(default_factory=list)  #: positions in the other datasets
    schedule_start: int = 0  #: update from which the learning rate schedule counts
    minutes: float = 0.0
    device_minutes: float = 0.0  #: minutes of training, summed over devices
    processor_minutes: float = 0.0  #: CPU minutes of all processes
    flops: int = 0  #: operations of the model so far
    skipped: int = 0  #: updates whose gradient was not finite
    skipped_in_a_row: int = 0
    out_of_memory: int = 0  #: updates repeated for lack of memory
    memory_limit: int | None = None  #: of a micro-batch, since then: tokens of both sides, with padding
    best: float | None = None  #: best validation so far, with the number since
    validations_since_best: int = 0
    uncounted_since_best: int = 0  #: validations since the best that --patience does not count
    validation: dict[str, float | None] = field(default_factory=dict)  #: results of the validation at this update
    is_interim: bool = False  #: whether the run resumed from a checkpoint of this update that is not counted
    window: dict[str, Any] = field(default_factory=dict)  #: sums for the next log line
    scaler: dict[str, float] = field(default_factory=dict)  #: loss scaling, with fp16 only
    schedule_free: dict[str, float] = field(default_factory=dict)  #: `schedule_free_sums` of the optimizer

    def begin_update(self, update: MixedUpdate) -> None:
        """Advance to an update before its gradient is computed."""
        self.update += 1
        same_epoch = self.epoch == update.epoch  # larger updates than before may have ended the epoch
        before = self.updates_in_epoch if same_epoch else 0
        self.position = update.next_position
        self.updates_in_epoch = before + 1 if self.epoch == update.epoch else 0
        self.validation, self.is_interim = {}, False

    def record_validation(
        self, results: dict[str, float | None], metric: str, better: Callable[[float, float], bool], counts: bool
    ) -> None:
        """Record the results of a validation at this update. `better(a, b)` compares values of `metric`; None is never
        the best. --patience counts it if `counts`."""
        self.validation = results
        value = results[metric]
        if value is not None and (self.best is None or better(value, self.best)):
            self.best = value
            self.forget_since_best()
        else:
            self.validations_since_best += 1
            self.uncounted_since_best += not counts

    def forget_since_best(self) -> None:
        """Reset the counts of validations since the best one."""
        self.validations_since_best = self.uncounted_since_best = 0

    @property
    def is_best(self) -> bool:
        """Whether the validation at this update is the best so far."""
        return bool(self.validation) and self.validations_since_best == 0

    def reason_to_stop(self, stop: StopConfig, metric: str) -> str | None:
        """Describe the option that ends the run now; None to continue. `metric` decides which validation is best."""
        if self.update >= stop.max_updates:
            return f"--max-updates {stop.max_updates}"
        if stop.max_epochs is not None and self.epoch > stop.max_epochs:
            return f"--max-epochs {stop.max_epochs}"
        if stop.max_minutes is not None and self.minutes >= stop.max_minutes:
            return f"--max-minutes {stop.max_minutes:g}"
        if stop.patience is not None and self.validations_since_best - self.uncounted_since_best >= stop.patience:
            return f"{counted(stop.patience, 'validation')} without a better {metric} (--patience {stop.patience})"
        return None

    def is_due(self, updates: int | None, epochs: int | None = None) -> bool:
        """Whether an action is due: every `updates` updates, or at the end of every `epochs` epochs."""
        done = 0 if self.updates_in_epoch else self.epoch - 1
        is_end_of_epoch = epochs is not None and done > 0 and done % epochs == 0
        return is_end_of_epoch or (updates is not None and self.update > 0 and self.update % updates == 0)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update."""
        return self.epoch if self.updates_in_epoch else max(1, self.epoch - 1)

    @property
    def position(self) -> Sequence[DataPosition]:
        """The position in each dataset where the next update begins."""
        first = DataPosition(self.epoch, self.part, self.updates_in_part)
        return [first, *(DataPosition(*other) for other in self.others)]

    @position.setter
    def position(self, position: Sequence[DataPosition]) -> None:
        (self.epoch, self.part, self.updates_in_part, _), *self.others = position


def restore(kind: type[T], values: Mapping[str, Any]) -> T:
    """Restore a `RunState` or `Window` from JSON values. Fields that older checkpoints lack get their defaults."""
    return kind(**{part.name: values[part.name] for part in fields(kind) if part.name in values})


def make_record(
    state: RunState, window: Window, metric: str, data: TrainingData, options: TrainingOptions
) -> dict[str, Any]:
    """Create the `progress` of a checkpoint, as plain JSON values."""
    first, *others = data.training_checksums()
    return {
        **asdict(state),
        "window": asdict(window),
        "best_metric": metric,
        "is_best": state.is_best,
        "is_interim": is_interim(state, metric, options),
        **state.validation,
        "data": first,
        "other_data": others,
        "validation_data": data.first.checksums(VALIDATION),
        "data_order_version": ORDER_VERSION,
        "schedule_version": SCHEDULE_VERSION,
        "loss_version": LOSS_VERSION,
        "options": options.to_dict(),
    }


def is_interim(state: RunState, metric: str, options: TrainingOptions) -> bool:
    """Whether --keep-last and nmt-average --last do not count this checkpoint.

    With --save-epochs, they count only checkpoints of --save-epochs and --save-every. With --save-minutes 0, they count
    only checkpoints that an uninterrupted run saves. Otherwise they count all.
    """
    config = options.checkpoints
    is_due = state.is_due(config.save_every, config.save_epochs)
    if config.save_epochs is None:
        is_due |= bool(config.save_minutes or state.validation or state.reason_to_stop(options.stop, metric))
    return not is_due
