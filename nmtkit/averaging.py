"""The mean of checkpoints of one model (§6.1: the last 5 of the base model, the last 20 of the big one)."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nmtkit.archive import as_user_errors
from nmtkit.checkpoint import (
    Checkpoint,
    check_finite,
    list_checkpoints,
    load_checkpoint,
    memory_for_weights,
    read_progress,
)
from nmtkit.errors import UserError
from nmtkit.log import Progress
from nmtkit.model.config import model_differences
from nmtkit.tokenizer import tokenizer_differences
from nmtkit.wording import counted

_ATTEMPTS = 5  # at reading the checkpoints of a run that deletes them meanwhile


def last_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """The newest `count` checkpoints of a training run, oldest first; with `until`, none after that update.

    Raises UserError if there are fewer.
    """
    paths = [path for _, path in _up_to(folder, until)]
    if len(paths) < count:
        raise UserError(_shortage("--last", count, folder, len(paths), until))
    return paths[-count:]


def best_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """The `count` best checkpoints of a training run, oldest first; with `until`, none after that update.

    Best by the value that each checkpoint recorded and the run judged by: the lowest validation loss, or the highest
    validation BLEU; of equal values the older checkpoint. One without a finite value is passed over. Raises UserError
    if there are fewer, or if they were not judged alike.
    """
    judged: list[tuple[float, int, Path]] = []
    metrics = set()
    splits = set()
    for update, path in _up_to(folder, until):
        progress = read_progress(path)
        with as_user_errors(path):
            metric, value, split = _judgement(progress)
        if metric is not None and value is not None and math.isfinite(value):
            metrics.add(metric)
            splits.add(split)
            judged.append((value, update, path))
    if len(metrics) > 1:
        raise UserError(
            f"--best: the checkpoints in {folder} were judged by {' and '.join(sorted(metrics))}: list them"
        )
    if len(splits) > 1:
        raise UserError(f"--best: the checkpoints in {folder} were judged on different validation splits: list them")
    if len(judged) < count:
        raise UserError(_shortage("--best", count, folder, len(judged), until, " with a validation value"))
    sign = -1 if metrics == {"valid_bleu"} else 1
    best = sorted(judged, key=lambda row: (sign * row[0], row[1]))[:count]
    return [path for _, _, path in sorted(best, key=lambda row: row[1])]


def _judgement(progress: dict[str, Any]) -> tuple[str | None, float | None, frozenset[tuple[str, str]]]:
    """The metric that a checkpoint was judged by, its value, and the checksums of the validation split.

    Raises TypeError, ValueError or AttributeError where they are of other types.
    """
    metric = progress.get("best_metric")
    value = None if metric is None else progress.get(metric)
    return metric, None if value is None else float(value), frozenset(progress.get("validation_data", {}).items())


def _up_to(folder: Path, until: int | None) -> list[tuple[int, Path]]:
    return [(update, path) for update, path in list_checkpoints(folder) if until is None or update <= until]


def _shortage(option: str, count: int, folder: Path, found: int, until: int | None, kind: str = "") -> str:
    """Which option asks for more checkpoints than are found in a folder, and what to ask for instead."""
    only, instead = ("only ", f": use {option} {found}") if found else ("", "")
    limit = "" if until is None else f" up to update {until}"
    return f"{option} {count}: {folder} has {only}{counted(found, 'checkpoint')}{limit}{kind}{instead}"


def average_run(choose: Callable[[], list[Path]], which: str = "auto") -> tuple[Checkpoint, list[Path]]:
    """The average of the checkpoints that `choose` finds in the folder of a run, which may be running, and their paths.

    A checkpoint that the run deletes before it is read is replaced by what `choose` finds then. Raises UserError where
    this happens time after time, and as `average_checkpoints`.
    """
    for _ in range(_ATTEMPTS):
        try:
            paths = choose()
            return average_checkpoints(paths, which), paths
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            vanished = error
    raise UserError(f"{vanished}: the run deletes checkpoints faster than they are read; copy them first") from vanished


@torch.no_grad()
def average_checkpoints(paths: Sequence[Path], which: str = "auto") -> Checkpoint:
    """A checkpoint with the mean of the weights, summed in float64 with one checkpoint in memory at a time.

    `which` weights of each: see `WeightsConfig`. The result has no optimizer state; matrices that are tied stay tied.
    Raises UserError if a file is given twice, if a parameter holds NaN or infinity, or naming the first difference if
    models, languages or vocabularies are not the same, or moving averages are in some and not in others.
    """
    _refuse_twice(paths)
    mean = load_checkpoint(paths[0])
    size = 12 * sum(map(torch.Tensor.numel, mean.weights.values()))  # in float64, and their mean in float32
    with memory_for_weights("the average", size), Progress("averaging", len(paths), unit="checkpoints") as progress:
        sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in mean.weights.items()}
        for path in paths:
            checkpoint = mean if path is paths[0] else load_checkpoint(path)
            for difference in _differences(mean, checkpoint, which):
                raise UserError(f"{path} cannot be averaged with {paths[0]}: {difference}")
            weights = checkpoint.chosen(which)
            with as_user_errors(path):
                check_finite(weights)
            for name, total in sums.items():
                total += weights[name]
            progress.advance()
        means = {name: (total / len(paths)).float() for name, total in sums.items()}
    return dataclasses.replace(
        mean, weights=means, progress={"averaged": distinct_names(paths)}, optimizer=None, ema=None
    )


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The names of files, from the folder on that all are in."""
    absolute = [path.absolute() for path in paths]
    folder = os.path.commonpath([path.parent for path in absolute])
    return [str(path.relative_to(folder)) for path in absolute]


def _refuse_twice(paths: Sequence[Path]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            facts = path.stat()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        before = seen.setdefault((facts.st_dev, facts.st_ino), path)
        if before is not path:
            raise UserError(f"{before} and {path} are the same file: give each checkpoint once")


def _differences(a: Checkpoint, b: Checkpoint, which: str) -> Iterator[str]:
    """What keeps b from being averaged with a, in words: the options of the model first, then the data's."""
    yield from model_differences(a.model_config, b.model_config, but_for=a.model_config.dropout_options)
    if (a.source_language, a.target_language) != (b.source_language, b.target_language):
        yield (f"it translates {b.source_language}-{b.target_language}, not {a.source_language}-{a.target_language}")
    yield from tokenizer_differences("source", a.source, b.source)
    yield from tokenizer_differences("target", a.target, b.target)
    if which != "trained" and (a.ema is None) != (b.ema is None):
        yield f"it has {'a' if b.ema else 'no'} moving average of the weights (take --weights trained)"
