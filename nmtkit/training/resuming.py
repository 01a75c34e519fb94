"""With what a run begins: a checkpoint of its own, if it is one of this run and as far as it is not to be forgotten;
the weights that it was given; or those that it has drawn."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.checkpoint import Checkpoint, load_weights
from nmtkit.data.batching import ORDER_VERSION, START, parts_of
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.model.config import TransformerConfig, model_differences
from nmtkit.training.config import TrainingOptions
from nmtkit.training.fine_tuning import FREE_OPTIONS, given_weights, vocabulary_differences
from nmtkit.training.learner import Learner
from nmtkit.training.optim import ENDING_SCHEDULES, SCHEDULE_VERSION, load_optimizer
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.state import RunState, restore
from nmtkit.training.validation import VALIDATION
from nmtkit.wording import counted

_RESETS = ("reset_optimizer", "reset_lr_schedule", "reset_progress")


def resume(
    learner: Learner, save_dir: SaveDir, split: str, metric: str, options: TrainingOptions, ranks: Ranks
) -> RunState | None:
    """Take up what the newest good checkpoint in the save folder holds; returns where the run stood, None if anew.

    Collective: the main process reads, and hands out all but the weights, which go to the others with the first
    gradient. `split` is trained on, `metric` decides which validation is best. Raises UserError where the checkpoint
    is not of this run.
    """
    optimizer: dict[str, Tensor] = {}
    averages: dict[str, Tensor] = {}
    state = ranks.run_on_main(partial(_read, learner, save_dir, split, metric, options, optimizer, averages))
    if learner.average is not None:
        learner.average.load(ranks.broadcast(averages))
    if state is not None:
        load_optimizer(learner.optimizer, learner.model, ranks.broadcast(optimizer))
        if state.scaler:
            learner.scaler.load_state_dict(state.scaler)
        logger.info("going on after update %d (epoch %d)", state.update, state.epoch)
    return state


def _read(
    learner: Learner,
    save_dir: SaveDir,
    split: str,
    metric: str,
    options: TrainingOptions,
    optimizer: dict[str, Tensor],
    averages: dict[str, Tensor],
) -> RunState | None:
    """Load the main process's weights, and fill in the rest.

    Averages that the run has not kept so far begin with its weights.
    """
    model, dataset = learner.model, learner.dataset
    checkpoint = save_dir.load_newest()
    given = options.fine_tuning.init_from
    if checkpoint is None:
        if given is not None:
            averages.update(given_weights(given, model.config, dataset))
            load_weights(model, averages)
            logger.info("beginning with the weights of %s", given)
        return None
    check_fit(checkpoint, model.config, dataset, split, options)
    state = resumed_state(checkpoint, dataset.checksums(VALIDATION), metric, options)
    _check_state(state, learner, parts_of(len(dataset.split(split))), save_dir.folder)
    if state.best is None:
        save_dir.forget_validations()
    if checkpoint.ema is not None:
        load_weights(model, checkpoint.ema)  # only to check that they fit
    load_weights(model, checkpoint.weights)
    if "reset_optimizer" not in new_resets(checkpoint, options):
        optimizer.update(checkpoint.optimizer or {})
    averages.update(checkpoint.chosen())
    if given is not None:
        logger.info("--init-from %s is not read: %s holds checkpoints", given, save_dir.folder)
    return state


def _check_state(state: RunState, learner: Learner, parts: int, folder: Path) -> None:
    """UserError where a state belongs to an epoch of fewer or more `parts`, or where its loss scaling is no such."""
    if state.part >= parts:
        raise UserError(
            f"{folder}: the newest checkpoint is in part {state.part + 1} of an epoch of {counted(parts, 'part')}: "
            "use another checkpoint"
        )
    scalings = (state.scaler, learner.scaler.state_dict())
    before, now = ({name: type(value) for name, value in scaling.items()} for scaling in scalings)
    if before and now and before != now:
        raise UserError(f"{folder}: the newest checkpoint has a damaged loss scaling: use another checkpoint")


def new_resets(checkpoint: Checkpoint, options: TrainingOptions) -> set[str]:
    """The reset options that are given now and were not when the checkpoint was written.

    One that was given then has been obeyed: a run that is stopped and started again by the same command goes on.
    """
    before = checkpoint.progress["options"].get("fine_tuning", {})
    return {name for name in _RESETS if getattr(options.fine_tuning, name) and not before.get(name)}


def check_fit(
    checkpoint: Checkpoint, model_config: TransformerConfig, dataset: Dataset, split: str, options: TrainingOptions
) -> None:
    """UserError where a checkpoint of the save folder belongs to a run with another model or other data."""
    folder = options.checkpoints.save_dir
    for difference in model_differences(model_config, checkpoint.model_config, but_for=FREE_OPTIONS):
        raise UserError(
            f"{folder} holds checkpoints of another model ({difference}): take the options it was started with, "
            "or another --save-dir, with --init-from to begin with these weights"
        )
    for difference in vocabulary_differences(checkpoint, dataset):
        raise UserError(
            f"{folder} holds checkpoints of another vocabulary than {dataset.folder} ({difference}): "
            "take the dataset it was started with, or another --save-dir"
        )
    data = dataset.checksums(split)
    before, now = ((one.source_language, one.target_language) for one in (checkpoint, dataset))
    is_same = checkpoint.progress.get("data", data) == data and before == now  # files tell no direction
    if not is_same and "reset_progress" not in new_resets(checkpoint, options):
        raise UserError(
            f"{folder} holds checkpoints of a run on other data than {dataset.folder}: take the dataset it was "
            "started with, another --save-dir, or --reset-progress to go on with this one"
        )


def resumed_state(
    checkpoint: Checkpoint, validation_data: dict[str, str], metric: str, options: TrainingOptions
) -> RunState:
    """Where the run stood, without what it is told to forget. `metric` decides which validation is best, those on
    other text than that of the checksums `validation_data` do not count. Warns of what makes it another run."""
    progress, resets = checkpoint.progress, new_resets(checkpoint, options)
    state = restore(RunState, progress)
    if "reset_progress" in resets:
        state.place, state.updates_in_epoch, state.minutes, state.flops = START, 0, 0.0, 0
    validated_elsewhere = progress.get("validation_data", validation_data) != validation_data
    metric_before = progress["best_metric"]
    if validated_elsewhere and "reset_progress" not in resets:
        logger.warning("going on with another validation split than before: what was best on that one is forgotten")
    if metric_before != metric and "reset_progress" not in resets:
        instead = f"{metric} instead of {metric_before}"
        logger.warning("going on with %s to tell what is best: what was best by that is forgotten", instead)
    if "reset_progress" in resets or validated_elsewhere or metric_before != metric:
        state.best, state.validations_since_best = None, 0
    if validated_elsewhere or metric not in state.validation:
        state.validation = {}  # it is still to come
    if "reset_lr_schedule" in resets:
        state.schedule_start = state.update
    _warn_of_other_versions(state, progress, resets, options.optimizer.lr_schedule)
    before, now = _that_change_a_run(progress["options"]), _that_change_a_run(options.to_dict())
    if differences := _differences(before, now):
        logger.warning("going on with other options than before: %s", "; ".join(differences))
    return state


def _warn_of_other_versions(state: RunState, progress: dict[str, Any], resets: set[str], schedule: str) -> None:
    """Warn where a run resumes with another data order, or another form of its falling `schedule`, than it began with.

    Checkpoints of version 1 do not name it.
    """
    used = progress.get("data_order_version", 1)
    if used != ORDER_VERSION and "reset_progress" not in resets:
        message = "data order is version %d, the checkpoint has version %d: batches differ from here on"
        if state.part or state.updates_in_part:
            message += f", and the rest of epoch {state.epoch} may repeat some sentence pairs and omit others"
        logger.warning(message, ORDER_VERSION, used)
    used, before = progress.get("schedule_version", 1), progress["options"].get("optimizer", {})
    is_same = before.get("lr_schedule") == schedule and "reset_lr_schedule" not in resets
    if used != SCHEDULE_VERSION and schedule in ENDING_SCHEDULES and is_same:
        message = (
            "--lr-schedule %s is version %d, the checkpoint has version %d: learning rates after the warm-up differ"
        )
        logger.warning(message, schedule, SCHEDULE_VERSION, used)


def _that_change_a_run(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The options, group by group, that decide which weights a run ends with."""
    batches, optimizer = options.get("batches", {}), options.get("optimizer", {})
    named = {
        "model": FREE_OPTIONS,
        "fine_tuning": {"freeze"},
        "stop": {"max_updates"} if optimizer.get("lr_schedule") in ENDING_SCHEDULES else set(),
        "compute": {"compile"},  # draws other masks of dropout
        "device": {"precision"},
    }
    chosen = {**batches, **optimizer}
    for group, names in named.items():
        chosen |= {name: value for name, value in options.get(group, {}).items() if name in names}
    return chosen


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of both has changed; an option that one of them does not have yet has not."""
    return [
        f"{name} was {before[name]}, is {now[name]}" for name in before if before[name] != now.get(name, before[name])
    ]
