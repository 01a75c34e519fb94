"""The progress of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from nmtkit.data.batching import DataPosition
from nmtkit.data.mixture import MixedUpdate, MixturePosition, OtherPosition
from nmtkit.training.config import StopConfig
from nmtkit.training.loss import perplexity
from nmtkit.wording import counted

T = TypeVar("T", "Window", "RunState")


@dataclass
class Window:
    """Sums over the updates since the last log line; learning rate and gradient norm are those of the last update."""

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    tokens: int = 0  #: of both sides
    padded_tokens: int = 0
    seconds: float = 0.0
    waiting: float = 0.0  #: seconds, of those above, without a micro-batch ready
    flops: int = 0  #: the model's own, without padding
    rate: float = 0.0
    gradient_norm: float | None = None  #: None where it was not finite
    datasets: dict[str, tuple[float, int]] = field(default_factory=dict)  #: with several: loss, target tokens

    def add_losses(self, names: Sequence[str], losses: Sequence[float], tokens: Sequence[int]) -> None:
        """Add the loss and target tokens of each dataset in an update."""
        for name, loss, count in zip(names, losses, tokens, strict=True):
            before = self.datasets.get(name, (0.0, 0))
            self.datasets[name] = before[0] + loss, before[1] + count

    def averages(self) -> dict[str, float]:
        """The means per token and per second for a log line; NaN where every update was skipped."""
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
        """The mean loss and the number of target tokens of each of several datasets; no loss without tokens."""
        values: dict[str, float | None] = {}
        for name, (loss, tokens) in self.datasets.items():
            values[f"train_{name}_loss"] = loss / tokens if tokens else None
            values[f"train_{name}_tokens"] = tokens
        return values


@dataclass
class RunState:
    """The progress of a run: what a checkpoint keeps beside weights and optimizer, as plain JSON values."""

    update: int = 0
    epoch: int = 1  #: of the next update, of the first dataset
    part: int = 0  #: of the epoch, in which updates are planned
    updates_in_part: int = 0
    updates_in_epoch: int = 0
    others: list[tuple[int, int, int, float]] = field(default_factory=list)  #: `OtherPosition` of each other dataset
    schedule_start: int = 0  #: the update from which the learning rate's schedule counts
    minutes: float = 0.0
    device_minutes: float = 0.0  #: summed over devices
    processor_minutes: float = 0.0  #: of all processes, without GPUs
    flops: int = 0  #: the model's own, so far
    skipped: int = 0  #: updates whose gradient was not finite
    skipped_in_a_row: int = 0
    out_of_memory: int = 0  #: updates repeated for lack of memory, with the limits learned
    memory_limits: dict[str, int] = field(default_factory=dict)
    best: float | None = None  #: best validation so far, with the number since
    validations_since_best: int = 0
    uncounted_since_best: int = 0  #: those of them that --patience does not count
    ranking: int = 0  #: how often the best was discarded; validations compare with those of the same number only
    validation: dict[str, float | None] = field(default_factory=dict)  #: results of the validation at this update
    is_interim: bool = False  #: whether the checkpoint of this update, with which the run resumed, is not counted
    window: dict[str, Any] = field(default_factory=dict)  #: sums for the next log line
    scaler: dict[str, float] = field(default_factory=dict)  #: loss scaling, with fp16 only

    def begin_update(self, update: MixedUpdate) -> None:
        """Advance to an update, before its gradient is computed."""
        self.update += 1
        same_epoch = self.epoch == update.epoch  # larger updates than before may have ended the epoch
        before = self.updates_in_epoch if same_epoch else 0
        self.position = update.next_position
        self.updates_in_epoch = before + 1 if self.epoch == update.epoch else 0
        self.validation, self.is_interim = {}, False

    def record_validation(
        self, results: dict[str, float | None], metric: str, better: Callable[[float, float], bool], counts: bool
    ) -> None:
        """Keep the results of a validation at this update, and whether they are the `better` ones by `metric`.

        `counts` is whether --patience counts the validation.
        """
        self.validation = results
        value = results[metric]
        if value is not None and (self.best is None or better(value, self.best)):
            self.best = value
            self.forget_since_best()
        else:
            self.validations_since_best += 1
            self.uncounted_since_best += not counts

    def discard_best(self) -> None:
        """Begin another ranking of validations, with which the values so far do not compare."""
        self.best = None
        self.ranking += 1
        self.forget_since_best()

    def forget_since_best(self) -> None:
        """Forget the validations since the best one."""
        self.validations_since_best = self.uncounted_since_best = 0

    @property
    def is_best(self) -> bool:
        """Whether the validation at this update is the best so far."""
        return bool(self.validation) and self.validations_since_best == 0

    def reason_to_stop(self, stop: StopConfig, metric: str) -> str | None:
        """The option that ends the run now, None to continue; `metric` decides which validation is best."""
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
        """Whether this is an update to act on: every `updates`-th, or the last of every `epochs`-th epoch."""
        done = 0 if self.updates_in_epoch else self.epoch - 1
        is_end_of_epoch = epochs is not None and done > 0 and done % epochs == 0
        return is_end_of_epoch or (updates is not None and self.update > 0 and self.update % updates == 0)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update."""
        return self.epoch if self.updates_in_epoch else max(1, self.epoch - 1)

    @property
    def position(self) -> MixturePosition:
        """The position in the data where the next update begins."""
        first = DataPosition(self.epoch, self.part, self.updates_in_part)
        return MixturePosition(first, tuple(OtherPosition(*other) for other in self.others))

    @position.setter
    def position(self, position: MixturePosition) -> None:
        self.epoch, self.part, self.updates_in_part = position.first
        self.others = [*position.others]


def restore(kind: type[T], values: Mapping[str, Any]) -> T:
    """A `RunState` or `Window` from JSON values. Fields missing from older checkpoints take their defaults."""
    return kind(**{part.name: values[part.name] for part in fields(kind) if part.name in values})
