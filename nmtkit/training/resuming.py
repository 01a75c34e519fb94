"""Starts a run from its own checkpoint (resume), from given weights, or from random weights."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from nmtkit.checkpoint import Checkpoint, Weights, ranking_conditions
from nmtkit.console.log import logger
from nmtkit.data.batching import ORDER_VERSION, START
from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, model_differences
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.weights import as_tensors, load_weights
from nmtkit.text.tokenizer import tokenizer_differences
from nmtkit.training.config import TrainingOptions
from nmtkit.training.fine_tuning import initial_weights
from nmtkit.training.learner import Learner
from nmtkit.training.loss import LOSS_VERSION
from nmtkit.training.optim import ENDING_SCHEDULES, SCHEDULE_VERSION, load_optimizer, schedule_free_sums
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.state import RunState, restore
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION


class _Start(NamedTuple):
    """The start of a run: `weights` and `averages` (None: random), and the rest of its checkpoint if it resumes."""

    weights: Weights | None = None
    averages: Mapping[str, Tensor] | None = None
    optimizer: Mapping[str, Tensor] | None = None
    state: RunState | None = None


def resume(
    learner: Learner, save_dir: SaveDir, data: TrainingData, metric: str, options: TrainingOptions, ranks: Ranks
) -> RunState | None:
    """Load the newest valid checkpoint in the save folder; return the state of the run, None for a new run. Collective.

    The main process broadcasts everything except the weights, which other ranks receive before the first gradient.
    `metric` decides which validation is best. Raises UserError if the checkpoint is from a different run.
    """

    def load() -> _Start:
        start = _read(learner, save_dir, data, metric, options)
        if start.weights is not None:
            load_weights(learner.model, start.weights)
        return start

    start = ranks.keep_on_main(load) or _Start()
    if learner.average is not None:
        learner.average.load(ranks.broadcast(start.averages or {}))
    state = ranks.run_on_main(lambda: start.state)
    if state is not None:
        load_optimizer(learner.optimizer, learner.model, ranks.broadcast(start.optimizer or {}))
        if schedule_free_sums(learner.optimizer):
            learner.optimizer.param_groups[0].update(state.schedule_free)
        if state.scaler:
            learner.scaler.load_state_dict(state.scaler)
        logger.info("resuming after update %d (epoch %d)", state.update, state.epoch)
    return state


def _read(learner: Learner, save_dir: SaveDir, data: TrainingData, metric: str, options: TrainingOptions) -> _Start:
    """Read the start of a run: its newest checkpoint, else the weights of --init-from, else nothing. A moving average
    that the run did not have before starts from the weights."""
    config = learner.model.config
    checkpoint = save_dir.load_newest()
    given = options.fine_tuning.init_from
    if checkpoint is None:
        if given is None:
            return _Start()
        weights, learner.search = initial_weights(given, learner.model, data.first)
        logger.info("initial weights: %s", given)
        return _Start(weights, averages=as_tensors(weights))
    check_fit(checkpoint, config, data, options)
    learner.search = checkpoint.search
    state = resumed_state(checkpoint, data.first.checksums(VALIDATION), metric, options)
    if state.best is None:
        save_dir.validations = {}
    if given is not None:
        logger.info("--init-from %s is ignored: resuming from the checkpoints in %s", given, save_dir.folder)
    if options.fine_tuning.reset_progress and not is_reset(checkpoint, options):
        logger.info("--reset-progress has already taken effect: to reset again, run once without it")
    averages, optimizer = as_tensors(checkpoint.chosen()), as_tensors(checkpoint.optimizer or {})
    return _Start(checkpoint.weights, averages, optimizer, state)


def is_reset(checkpoint: Checkpoint, options: TrainingOptions) -> bool:
    """Whether --reset-progress is given now, but was not when the checkpoint was written: it takes effect once."""
    before = checkpoint.progress["options"].get("fine_tuning", {})
    return options.fine_tuning.reset_progress and not before.get("reset_progress")


def check_fit(checkpoint: Checkpoint, config: ModelConfig, data: TrainingData, options: TrainingOptions) -> None:
    """Raise UserError if a checkpoint is from a run with a different model or different data."""
    folder, dataset = options.checkpoints.save_dir, data.first
    for difference in model_differences(config, checkpoint.model_config, but_for=config.free_options):
        raise UserError(
            f"{folder} contains checkpoints of a different model ({difference}): use the options it was started with, "
            "or a different --save-dir, with --init-from to start from these weights"
        )
    before, now = checkpoint.lora or LoraConfig(), options.lora
    if before.describe() != now.describe():
        raise UserError(
            f"{folder} contains checkpoints of a run with {before.describe()}, not {now.describe()}: use the options "
            "it was started with, or a different --save-dir"
        )
    own, given = (dataset.source, dataset.target), (checkpoint.source, checkpoint.target)
    for difference in tokenizer_differences(own, given):
        raise UserError(
            f"{folder} contains checkpoints with a different vocabulary than {dataset.folder} ({difference}): "
            "use the dataset it was started with, or a different --save-dir"
        )
    first, *others = data.training_checksums()
    is_same = checkpoint.progress.get("data", first) == first
    is_same &= checkpoint.languages == data.languages  # checksums ignore direction
    is_same &= checkpoint.progress.get("other_data", []) == others
    if not is_same and not is_reset(checkpoint, options):
        folders = ", ".join(str(each.folder) for each in data.datasets)
        raise UserError(
            f"{folder} contains checkpoints of a run on different data than {folders}: use the data it was started "
            "with, use a different --save-dir, or give --reset-progress to continue with this data (if it has already "
            "taken effect, save a checkpoint without it first)"
        )


def resumed_state(
    checkpoint: Checkpoint, validation_data: dict[str, str], metric: str, options: TrainingOptions
) -> RunState:
    """Restore the state of a run, and apply --reset-progress if given. Warns about changes that alter its results, and
    discards the best validation if values of `metric` or the split with these checksums cannot be compared with it."""
    progress, reset = checkpoint.progress, is_reset(checkpoint, options)
    state = restore(RunState, progress)
    if reset:
        state.position, state.updates_in_epoch = [START], 0
        state.minutes, state.device_minutes, state.processor_minutes, state.flops = 0.0, 0.0, 0.0, 0
    now = {"best_metric": metric, "validation_data": validation_data, "loss_version": LOSS_VERSION}
    conditions = ranking_conditions({**now, "options": options.to_dict()})
    before = ranking_conditions({"validation_data": validation_data, **progress})
    change = next((name for name, value in conditions.items() if before.get(name) != value), None)
    if change and not reset:
        logger.warning("%s has changed: the previous best result is discarded", change)
    if change or reset:
        state.best = None
        state.forget_since_best()
    if change:
        state.validation = {}  # this update is to be validated again
    _warn_of_other_versions(progress, options.optimizer.lr_schedule)
    free_options = options.model.free_options
    old, new = (_relevant_options(each, free_options) for each in (progress["options"], options.to_dict()))
    changed = [name for name in old.keys() & new.keys() if old[name] != new[name]]
    if changes := [f"{name} was {old[name]}, is now {new[name]}" for name in sorted(changed)]:
        logger.warning("options have changed since the checkpoint: %s", "; ".join(changes))
    return state


def _warn_of_other_versions(progress: dict[str, Any], schedule: str) -> None:
    """Warn if an algorithm that determines the run has a different version now. A version that is not recorded is 1."""
    versions = [
        ("the data order", "data_order_version", ORDER_VERSION, "the rest of the epoch may repeat or omit some pairs"),
        ("the loss", "loss_version", LOSS_VERSION, "losses and weights differ slightly from here on"),
    ]
    if schedule in ENDING_SCHEDULES:
        versions.append((f"--lr-schedule {schedule}", "schedule_version", SCHEDULE_VERSION, "learning rates differ"))
    for subject, name, current, effect in versions:
        used = progress.get(name, 1)
        if used != current:
            logger.warning("the checkpoint has version %d of %s, nmtkit now has %d: %s", used, subject, current, effect)


def _relevant_options(options: dict[str, dict[str, Any]], free_options: Collection[str]) -> dict[str, Any]:
    """Select the options that affect the final weights of a run. Of the model, only `free_options` can change."""
    batches, optimizer = options.get("batches", {}), options.get("optimizer", {})
    named = {
        "model": free_options,
        "fine_tuning": {"freeze"},
        "stop": {"max_updates"} if optimizer.get("lr_schedule") in ENDING_SCHEDULES else set(),
        "compute": {"compile"},  # changes dropout masks
        "device": {"precision"},
    }
    chosen = {**batches, **optimizer}
    for group, names in named.items():
        chosen |= {name: value for name, value in options.get(group, {}).items() if name in names}
    return chosen
