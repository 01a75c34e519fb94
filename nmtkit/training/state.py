"""How far a run has come."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from nmtkit.data.batching import Place
from nmtkit.training.config import StopConfig
from nmtkit.training.loss import perplexity

T = TypeVar("T", "Window", "RunState")


@dataclass
class Window:
    """Sums over the updates since the last log line; learning rate and norm of the gradient are those of the last."""

    loss: float = 0.0
    nll: float = 0.0
    target_tokens: int = 0
    tokens: int = 0  #: of both sides
    padded_tokens: int = 0
    seconds: float = 0.0
    waiting: float = 0.0  #: seconds, of those above, without a micro-batch to work on
    flops: int = 0  #: the model's own, padding left out
    rate: float = 0.0
    gradient_norm: float | None = None  #: None where it was not finite

    def averages(self) -> dict[str, float]:
        """The sums by token and by second, as a log line has them; no number where every update was skipped."""
        tokens = self.target_tokens or math.nan
        return {
            "loss": self.loss / tokens,
            "nll": self.nll / tokens,
            "ppl": perplexity(self.nll / tokens),
            "tokens_per_second": round(self.target_tokens / self.seconds),
            "padding": 1 - self.tokens / self.padded_tokens,
            "waiting": self.waiting / self.seconds,
        }


@dataclass
class RunState:
    """How far a run has come: what a checkpoint keeps beside weights and optimizer, as plain JSON values."""

    update: int = 0
    epoch: int = 1  #: of the next update
    part: int = 0  #: of the epoch, as it is planned
    updates_in_part: int = 0
    updates_in_epoch: int = 0
    schedule_start: int = 0  #: the update from which the learning rate's schedule counts
    minutes: float = 0.0
    flops: int = 0  #: the model's own, so far
    skipped: int = 0  #: updates with a gradient that was not finite
    skipped_in_a_row: int = 0
    out_of_memory: int = 0  #: updates that were begun anew for it, and what was learned from that
    memory_limits: dict[str, int] = field(default_factory=dict)
    best: float | None = None  #: best validation so far, and how many there have been since
    validations_since_best: int = 0
    validation: dict[str, float | None] = field(default_factory=dict)  #: results of the validation at this very update
    window: dict[str, Any] = field(default_factory=dict)  #: sums for the next log line
    scaler: dict[str, float] = field(default_factory=dict)  #: loss scaling, with fp16 only

    def reason_to_stop(self, stop: StopConfig, metric: str) -> str | None:
        """The option by which the run has come to its end, if it has; `metric` decides which validation is best."""
        if self.update >= stop.max_updates:
            return f"--max-updates {stop.max_updates}"
        if stop.max_epochs is not None and self.epoch > stop.max_epochs:
            return f"--max-epochs {stop.max_epochs}"
        if stop.max_minutes is not None and self.minutes >= stop.max_minutes:
            return f"--max-minutes {stop.max_minutes:g}"
        if stop.patience is not None and self.validations_since_best >= stop.patience:
            return f"--patience {stop.patience}: that many validations without a new best {metric}"
        return None

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update."""
        return self.epoch if self.updates_in_epoch else max(1, self.epoch - 1)

    @property
    def place(self) -> Place:
        """Where in the data the next update begins."""
        return Place(self.epoch, self.part, self.updates_in_part)

    @place.setter
    def place(self, place: Place) -> None:
        self.epoch, self.part, self.updates_in_part = place


def restore(kind: type[T], values: Mapping[str, Any]) -> T:
    """A `RunState` or `Window` from JSON values. Fields that an older version did not write take their defaults."""
    return kind(**{part.name: values[part.name] for part in fields(kind) if part.name in values})
