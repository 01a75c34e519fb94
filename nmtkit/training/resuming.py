"""Going on from a checkpoint: whether it is one of this run, where the run stood, what of that is to be forgotten."""

from dataclasses import fields
from typing import Any

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.batching import START
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.model.config import ModelConfig
from nmtkit.training.state import RunState, TrainingOptions

_RESETS = ("reset_optimizer", "reset_lr_schedule", "reset_progress")


def new_resets(checkpoint: Checkpoint, options: TrainingOptions) -> set[str]:
    """The reset options that are given now and were not when the checkpoint was written.

    One that was given then has been obeyed: a run that is stopped and started again by the same command goes on.
    """
    before = checkpoint.progress["options"].get("fine_tuning", {})
    return {name for name in _RESETS if getattr(options.fine_tuning, name) and not before.get(name)}


def check_fit(
    checkpoint: Checkpoint, model_config: ModelConfig, dataset: Dataset, split: str, options: TrainingOptions
) -> None:
    """UserError where a checkpoint of the save folder belongs to a run with another model or other data."""
    folder = options.checkpoints.save_dir
    if checkpoint.model_config != model_config:
        raise UserError(
            f"{folder} holds checkpoints of another model "
            f"({_first_difference(checkpoint.model_config.to_dict(), model_config.to_dict())}): "
            "take the options it was started with, or another --save-dir"
        )
    if (checkpoint.source.vocab, checkpoint.target.vocab) != (dataset.source.vocab, dataset.target.vocab):
        raise UserError(
            f"{folder} holds checkpoints of another vocabulary than {dataset.folder}: "
            "take the dataset it was started with, or another --save-dir"
        )
    data = dataset.checksums(split)
    if checkpoint.progress.get("data", data) != data and "reset_progress" not in new_resets(checkpoint, options):
        raise UserError(
            f"{folder} holds checkpoints of a run on other data than {dataset.folder}: take the dataset it was "
            "started with, another --save-dir, or --reset-progress to go on with this one"
        )


def resumed_state(checkpoint: Checkpoint, metric: str, options: TrainingOptions) -> RunState:
    """Where the run stood, without what it is told to forget. `metric` decides which validation is best."""
    progress, resets = checkpoint.progress, new_resets(checkpoint, options)
    state = RunState(**{part.name: progress[part.name] for part in fields(RunState) if part.name in progress})
    if "reset_progress" in resets:
        state.place, state.updates_in_epoch, state.minutes = START, 0, 0.0
    if "reset_progress" in resets or progress["best_metric"] != metric:
        state.best, state.validations_since_best = None, 0
    if "reset_lr_schedule" in resets:
        state.schedule_start = state.update
    for group in ("batches", "optimizer"):
        before, now = progress["options"][group], getattr(options, group).to_dict()
        if before != now:
            logger.warning("going on with other options than before: %s", _first_difference(before, now))
    return state


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = {**before, **now}
    return next(
        f"{name} was {before.get(name)}, is {now.get(name)}" for name in names if before.get(name) != now.get(name)
    )
