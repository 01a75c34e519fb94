"""The `progress` in a checkpoint: created when a run saves, checked before it resumes."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nmtkit.data.batching import ORDER_VERSION
from nmtkit.errors import UserError
from nmtkit.training.config import TrainingOptions
from nmtkit.training.loss import LOSS_VERSION
from nmtkit.training.optim import SCHEDULE_VERSION
from nmtkit.training.state import RunState, Window
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION

# The required entries. All others have defaults, since older versions did not write them.
_REQUIRED = ("best_metric", "checkpoint_validations", "options", "update")


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


def check_record(progress: Mapping[str, Any], path: Path, update: int | None = None) -> None:
    """Raise UserError unless a run can resume from the `progress` of a checkpoint, written after `update` if given.

    Values are not checked: the checksum of the file protects them.
    """
    if "options" not in progress:
        raise UserError(f"{path} is an average or an import: use it with --init-from")
    for name in sorted({*_REQUIRED} - progress.keys()):
        raise UserError(f"{path}: its training state has no {name}")
    if update is not None and progress["update"] != update:
        raise UserError(f"{path} was saved after update {progress['update']}, not {update} as its name says")


def recorded_options(progress: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the run's options from the `progress` of a checkpoint. Raises UserError if they are incomplete."""
    check_record(progress, path)
    options: dict[str, Any] = progress["options"]
    if not options.get("batches", {}).get("max_tokens"):
        raise UserError(f"{path}: its training state has no options.batches.max_tokens")
    return options
