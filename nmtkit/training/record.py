"""The `progress` of a training checkpoint: made when a run saves, checked before it resumes."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from nmtkit.data.batching import ORDER_VERSION
from nmtkit.errors import UserError
from nmtkit.training.config import TrainingOptions
from nmtkit.training.loss import LOSS_VERSION
from nmtkit.training.optim import SCHEDULE_VERSION
from nmtkit.training.state import RunState, Window, restore
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION
from nmtkit.wording import quoted

_LARGEST = 2**100  # above any count of a run
_LARGEST_FLOAT = 1e39  # above any value in fp32, and any time of a run


class _Required(TypedDict):
    update: int
    best_metric: str
    checkpoint_validations: list[tuple[int, float]]
    options: dict[str, dict[str, Any]]


class Record(_Required, total=False):
    """The `progress` of a checkpoint, beside the fields of `RunState` and the results of a validation.

    Checkpoints of older versions can lack optional fields.
    """

    is_best: bool
    is_interim: bool
    data: dict[str, str]
    other_data: list[dict[str, str]]
    validation_data: dict[str, str]
    data_order_version: int
    schedule_version: int
    loss_version: int


def make_record(
    state: RunState, window: Window, metric: str, data: TrainingData, options: TrainingOptions
) -> dict[str, Any]:
    """The `progress` of a checkpoint, as plain JSON values."""
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

    With --save-epochs, they count those of --save-epochs and --save-every; with --save-minutes 0, those that a run
    without interruptions saves. Otherwise they count all.
    """
    config = options.checkpoints
    is_due = state.is_due(config.save_every, config.save_epochs)
    if config.save_epochs is None:
        is_due |= bool(config.save_minutes or state.validation or state.reason_to_stop(options.stop, metric))
    return not is_due


def check_record(progress: Mapping[str, Any], path: Path) -> None:
    """Raise UserError, naming the first wrong field, unless a run can resume from the `progress` of a checkpoint."""
    for name in sorted(_Required.__required_keys__ - progress.keys()):
        raise UserError(f"{path}: its training state has no {name}")
    check_options(progress["options"], path)
    _check_fields(progress, get_type_hints(Record) | get_type_hints(RunState), path)
    _check_fields(progress.get("window", {}), get_type_hints(Window), path, "window.")
    window, state = restore(Window, progress.get("window", {})), restore(RunState, progress)
    if window.padded_tokens and not window.seconds:
        raise UserError(f"{path}: its training state has window.padded_tokens without window.seconds")
    if not all(length.isdecimal() for length in state.memory_limits):
        raise UserError(f"{path}: its training state has memory_limits that are not lengths")
    bounds = {
        "epoch": (1, state.update + 1),
        "part": (0, state.updates_in_epoch),
        "updates_in_part": (0, state.updates_in_epoch),
        "updates_in_epoch": (0, state.update),
        "schedule_start": (0, state.update),
    }
    if any(epoch < 1 for epoch, *_ in state.others):
        raise UserError(f"{path}: its training state has epoch 0 of a dataset in others, impossible")
    for name, (least, most) in bounds.items():
        if not least <= getattr(state, name) <= most:
            value = quoted(getattr(state, name))
            raise UserError(f"{path}: its training state has {name} {value}, impossible after update {state.update}")


def check_options(options: Any, path: Path) -> None:
    """Raise UserError, naming the first wrong one, unless these can be the recorded options of a run."""
    _check_fields({"options": options}, {"options": dict[str, Any]}, path)
    _check_fields(options, dict.fromkeys(options, dict[str, Any]), path, "options.")
    kinds = {"max_tokens": int, "packing": Literal["on", "off"]}
    _check_fields(options.get("batches", {}), kinds, path, "options.batches.")


def _check_fields(values: Mapping[str, Any], kinds: Mapping[str, Any], path: Path, group: str = "") -> None:
    for name, kind in kinds.items():
        if name in values and not _is(values[name], kind):
            raise UserError(f"{path}: its training state has an impossible {group}{name}: {quoted(values[name])}")


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value has the type of an annotation; numbers must also be finite and not negative."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Any:
        return True
    if origin is Literal:
        return value in inner
    if origin is UnionType:
        return any(_is(value, one) for one in inner)
    if origin is dict:
        return isinstance(value, dict) and all(
            _is(name, inner[0]) and _is(one, inner[1]) for name, one in value.items()
        )
    if origin is list:
        return isinstance(value, list) and all(_is(one, inner[0]) for one in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(_is, value, inner))
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    if origin is float:
        return _is(value, int) or (isinstance(value, float) and 0 <= value < _LARGEST_FLOAT)
    return isinstance(value, origin)
