"""Plans a run for --budget. The size of the corpus selects the model, and the measured speed the number of updates.

The evidence for the rules is in docs/explanation/budget.md.
"""

import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.config import as_flags
from nmtkit.console.log import Report, logger
from nmtkit.errors import UserError
from nmtkit.machine.precision import autocast
from nmtkit.model.architectures import config_from_dict
from nmtkit.model.config import ModelConfig
from nmtkit.model.presets import PRESETS
from nmtkit.model.weights import as_tensors
from nmtkit.storage.run_files import AVERAGED, BEST
from nmtkit.training.averaging import average_run, last_checkpoints
from nmtkit.training.config import TrainingOptions
from nmtkit.training.learner import Learner
from nmtkit.training.ranks import Ranks
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.summary import duration
from nmtkit.training.training_data import TrainingData
from nmtkit.training.validation import VALIDATION, Validator
from nmtkit.wording import counted, format_value

_VALIDATIONS = 16  # at most
_SHARE_OF_VALIDATIONS = 0.1  # of the time, at most
_AVERAGED = 4  # checkpoints, one for each validation: the last quarter of the run
_SHARE = 0.92  # of the time is planned; the rest is for checkpoints, averaging, and variations of the speed
_LATEST = 0.97  # of the time: training stops if it has become slower; the rest is for the start and the last checkpoint
_SIZES = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads")  # --arch fixes them, and what it sets
_COST_OF_TRAINING = 3  # passes of a validation


class Rule(NamedTuple):
    """Options for corpora of up to `pairs` pairs, chosen if the time allows `least` passes. Passes beyond `most` do not
    improve the model. Runs of less than a quarter of `most` passes get proportionally less dropout."""

    pairs: float
    least: float
    most: float
    options: Mapping[str, Any]


_COMMON = {"norm": "pre", "positions": "rotary", "lr_schedule": "linear"}
_SMALL = {"arch": "transformer_small", **_COMMON, "max_tokens": 1024, "batch_tokens": 2048, "lr": 2e-3}
_SMALLEST = {**_SMALL, "d_ff": 512, "optimizer": "muon", "lr": 4e-3}
_BASE = {"arch": "transformer_base", **_COMMON, "batch_tokens": 8192, "lr": 1e-3}
_BIG = {"arch": "transformer_big", **_COMMON, "batch_tokens": 25000, "lr": 7e-4}

# For each size of corpus, the largest model first.
RULES = (
    Rule(5_000, 0, 60, {**_SMALLEST, "dropout": 0.4, "attention_dropout": 0.1, "batch_tokens": 1024}),
    Rule(15_000, 0, 50, {**_SMALLEST, "dropout": 0.4, "batch_tokens": 1024}),
    Rule(60_000, 0, 40, {**_SMALLEST, "dropout": 0.3}),
    Rule(400_000, 15, 40, {**_BASE, "d_ff": 1024, "dropout": 0.3, "batch_tokens": 4096}),
    Rule(400_000, 0, 40, {**_SMALL, "dropout": 0.2}),
    Rule(3_000_000, 8, 30, {**_BASE, "dropout": 0.1}),
    Rule(3_000_000, 0, 30, {**_SMALL, "dropout": 0.1, "batch_tokens": 4096}),
    Rule(math.inf, 10, 20, {**_BIG, "dropout": 0.1}),
    Rule(math.inf, 1.5, 20, {**_BASE, "dropout": 0.1, "batch_tokens": 25000}),
    Rule(math.inf, 0, 20, {**_SMALL, "dropout": 0.1, "batch_tokens": 4096}),
)


def with_plan(
    data: TrainingData,
    options: TrainingOptions,
    given: Mapping[str, Any],
    ranks: Ranks,
    measure: Callable[[TrainingOptions], float],
) -> TrainingOptions:
    """Resolve --budget: as recorded by the run in the save folder, or by measuring. Collective.

    `given` contains the options that the user has set, which override the plan. `measure` returns the target tokens per
    second of a run with the given options. Raises UserError if the save folder contains a run with a different budget.
    """
    budget, folder = options.stop.budget, options.checkpoints.save_dir
    if options.fine_tuning.init_from:
        raise UserError("--budget plans a new model: to fine-tune one, use --max-minutes")
    if "arch" in given:
        fixed = (*_SIZES, *PRESETS[given["arch"]].options)
        given = {name: getattr(options.model, name) for name in fixed if hasattr(options.model, name)} | dict(given)
    recorded = ranks.run_on_main(lambda: SaveDir(options.checkpoints).read_options())
    if recorded is not None:
        before = recorded["stop"].get("budget")
        if before != budget:
            how = f"with --budget {before}" if before else "without --budget"
            raise UserError(f"{folder} contains a run that was started {how}: resume it the same way")
        return _with(options, _recorded(recorded), given, config_from_dict(recorded["model"]))
    began, minutes, pairs = time.monotonic(), options.stop.budget_minutes, sum(map(len, data.splits))
    for rule in rules_for(pairs):
        if given.get("optimizer", "muon") != "muon":  # the rates of the rules for Muon are higher
            rule = rule._replace(options={**rule.options, "lr": min(rule.options["lr"], _SMALL["lr"])})
        trial = _with(options, rule.options, given)
        speed = ranks.gather(measure(trial))[0]
        available = _SHARE * 60 * minutes * speed
        validations = _validations(data, available)
        affordable = max(0.0, available - validations * _cost_of_validation(data)) / data.tokens_per_epoch
        if affordable >= rule.least:
            break
    passes = min(affordable, rule.most)
    dropout = round(rule.options["dropout"] * min(1.0, 4 * passes / rule.most), 2)
    tokens = passes * data.tokens_per_epoch
    updates = given.get("max_updates") or max(validations, round(tokens / trial.batches.batch_tokens))
    averaging = 4 * _cost_of_validation(data) / speed  # seconds of two validations, even at half the speed
    left = _LATEST * minutes - (time.monotonic() - began + averaging) / 60
    schedule = _schedule(updates, validations, left)
    values = {**rule.options, "dropout": dropout, **schedule}
    names = {"arch", *(one.name for part in fields(trial) for one in fields(getattr(trial, part.name)))}
    planned = {name: value for name, value in values.items() if name in names}
    report = Report(f"plan for --budget {budget}")
    report.add("corpus", f"{pairs:,} pairs, {data.splits[0].target.tokens:,} target tokens")
    report.add("speed", f"{speed:,.0f} target tokens per second with {trial.model.summary()}")
    early = "" if affordable <= rule.most else "; more would not improve the model"
    report.add(
        "length",
        f"{counted(updates, 'update')}, {passes:.1f} passes over the corpus, "
        f"about {duration(tokens / speed / 60)}{early}",
    )
    explicit = {name: value for name, value in {**planned, **given}.items() if name != "budget"}
    folders = shlex.join(str(dataset.folder) for dataset in data.datasets)
    report.add("same as", f"nmt-train {folders} {as_flags(explicit)}")
    report.show()
    return _with(options, planned, given)


def rules_for(pairs: int) -> list[Rule]:
    """List the rules for a corpus of this many pairs, the largest model first."""
    size = next(rule.pairs for rule in RULES if pairs <= rule.pairs)
    return [rule for rule in RULES if rule.pairs == size]


def _cost_of_validation(data: TrainingData) -> float:
    """Return the number of target tokens that training processes in the time of one validation."""
    dataset = data.first
    return dataset.split(VALIDATION).target.tokens / _COST_OF_TRAINING if VALIDATION in dataset.split_names else 0.0


def _validations(data: TrainingData, tokens: float) -> int:
    affordable = _SHARE_OF_VALIDATIONS * tokens / max(1.0, _cost_of_validation(data))
    return max(_AVERAGED, min(_VALIDATIONS, int(affordable)))


def _schedule(updates: int, validations: int, minutes: float) -> dict[str, Any]:
    every = max(1, updates // validations)
    return {
        "max_updates": updates,
        "max_minutes": max(0.01, round(minutes, 2)),
        "warmup_updates": max(1, min(4000, updates // 20)),
        "validate_every": every,
        "save_every": every,
        "save_minutes": 0.0,
        "keep_last": _AVERAGED,
    }


def _recorded(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Select the options that a plan may set from the recorded ones."""
    names = {name for rule in RULES for name in rule.options} | _schedule(1, 1, 1.0).keys()
    return {name: value for group in groups.values() for name, value in group.items() if name in names}


def _with(
    options: TrainingOptions, values: Mapping[str, Any], given: Mapping[str, Any], model: ModelConfig | None = None
) -> TrainingOptions:
    """Set the options `values`, except `given` ones. `model` is the model, by default the one of --arch."""
    groups = {part.name: getattr(options, part.name) for part in fields(options)}
    if "arch" not in given:
        own = {field.name: getattr(options.model, field.name) for field in fields(options.model) if field.name in given}
        groups["model"] = replace(model or PRESETS[values["arch"]].model_config(), **own)
    for name, group in groups.items():
        free = {field.name for field in fields(group)} - given.keys()
        groups[name] = replace(group, **{key: value for key, value in values.items() if key in free})
    return replace(options, **groups)


def better_of_average_and_best(
    save_dir: SaveDir, learner: Learner, validator: Validator, best: float | None, ranks: Ranks
) -> Path:
    """Average the newest checkpoints, and return the file of the average, or of the best checkpoint if that is better.
    `best` is its value. Collective. The learner's weights become the average."""

    def average() -> Checkpoint:
        count = min(_AVERAGED, len(save_dir.regular()))
        return average_run(lambda: last_checkpoints(save_dir.folder, count))[0]

    mean = ranks.keep_on_main(average)
    parameters = dict(learner.model.named_parameters())
    with torch.no_grad():
        for name, weight in ranks.broadcast(as_tensors(mean.weights) if mean else {}):
            parameters[name].copy_(weight)
    path = save_dir.folder / AVERAGED
    if validator.possible:
        with autocast(learner.device, learner.precision):
            results = validator.run(learner.loss, ranks)
        value = results.values[validator.metric] if results else math.nan
        found = format_value(value), "none" if best is None else format_value(best)
        logger.info("%s: %s of the average, %s of the best checkpoint", validator.metric, *found)
        if best is not None and not validator.better(value, best):
            ranks.run_on_main(lambda: path.unlink(missing_ok=True))
            return save_dir.folder / BEST
    ranks.run_on_main(lambda: save_checkpoint(path, mean) if mean else None)
    return path
