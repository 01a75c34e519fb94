"""Checkpoint averaging (§6.1: the last 5 checkpoints of the base model, the last 20 of the big model)."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from nmtkit.checkpoint import (
    HIGHEST_IS_BEST,
    Checkpoint,
    load_checkpoint,
    memory_for_weights,
    ranking_conditions,
    read_progress,
)
from nmtkit.console.log import Progress, logger
from nmtkit.errors import UserError
from nmtkit.model.config import model_differences
from nmtkit.model.parameters import check_finite
from nmtkit.storage.archive import as_user_errors
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.text.changed_vocabularies import trimmed
from nmtkit.text.input_stream import chunks
from nmtkit.text.reading import read_lines
from nmtkit.text.tokenizer import tokenizer_differences
from nmtkit.wording import counted

_LINES = 10_000  # of a text to encode at a time
_MAX_ATTEMPTS = 5  # a training run may delete checkpoints while they are read


def last_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """List the newest `count` checkpoints of a training run, oldest first.

    Ignores checkpoints after update `until` and those that --keep-last does not count. Raises UserError for too few.
    """
    found = _up_to(folder, until)
    counting = (path for _, path in reversed(found) if not read_progress(path).get("is_interim"))
    newest = list(islice(counting, count))
    if len(newest) < count:
        kind = " that --keep-last counts" if len(newest) < len(found) else ""
        raise UserError(_too_few_message("--last", count, folder, len(newest), until, kind))
    return newest[::-1]


def best_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """List the `count` best checkpoints of a run by its metric, oldest first. Of two equal ones, the older is better.

    Ignores checkpoints after update `until` or without a finite value. Raises UserError if too few are left, or if
    their values are not comparable.
    """
    scored: list[tuple[float, int, Path]] = []
    first: dict[str, Any] = {}
    for update, path in _up_to(folder, until):
        progress = read_progress(path)
        metric = str(progress.get("best_metric"))
        with as_user_errors(path):
            conditions, value = ranking_conditions(progress), progress.get(metric)
            value = math.nan if value is None else float(value)
        if not math.isfinite(value):
            continue
        first = first or conditions
        for name in first:
            if conditions.get(name) != first[name]:
                raise UserError(f"--best: the checkpoints in {folder} differ in {name}: list the files instead")
        scored.append((-value if metric in HIGHEST_IS_BEST else value, update, path))
    if len(scored) < count:
        raise UserError(_too_few_message("--best", count, folder, len(scored), until, " with a validation value"))
    best = sorted(scored, key=lambda entry: entry[:2])[:count]
    return [path for _, _, path in sorted(best, key=lambda entry: entry[1])]


def _up_to(folder: Path, until: int | None) -> list[tuple[int, Path]]:
    return [(update, path) for update, path in list_checkpoints(folder) if until is None or update <= until]


def _too_few_message(option: str, count: int, folder: Path, found: int, until: int | None, kind: str = "") -> str:
    """Create the error message for an option that asks for more checkpoints than `folder` contains."""
    only, instead = ("only ", f": use {option} {found}") if found else ("", ": list the files" if kind else "")
    limit = "" if until is None else f" up to update {until}"
    return f"{option} {count}: {folder} has {only}{counted(found, 'checkpoint')}{limit}{kind}{instead}"


def average_run(choose: Callable[[], list[Path]], weights: str = "auto") -> tuple[Checkpoint, list[Path]]:
    """Average the checkpoints that `choose` returns, and return the average with their paths. If a run in progress
    deletes one before it is read, `choose` is called again, several times. Raises UserError."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            paths = choose()
            return average_checkpoints(paths, weights), paths
        except UserError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            vanished = error
    raise UserError(f"{vanished}: training deletes checkpoints before they are read: copy them first") from vanished


def average_checkpoints(paths: Sequence[Path], weights: str = "auto") -> Checkpoint:
    """Average the weights of checkpoints in float64, with one checkpoint in memory at a time.

    `weights` selects trained weights or their moving average, see `WeightsConfig`. Tied matrices stay tied. Raises
    UserError if a file is given twice, a parameter is not finite, or the checkpoints differ in model, languages,
    vocabularies or the presence of a moving average.
    """
    for first, path in combinations([path for path in paths if path.exists()], 2):
        if path.samefile(first):
            raise UserError(f"{first} and {path} are the same file: give each checkpoint once")
    mean = load_checkpoint(paths[0])
    size = 3 * sum(weight.nbytes for weight in mean.weights.values())  # bytes: float64 sums and their float32 means
    with memory_for_weights("the average", size), Progress("averaging", len(paths), unit="checkpoints") as progress:
        sums = {name: np.zeros_like(weight, np.float64) for name, weight in mean.weights.items()}
        for path in paths:
            checkpoint = mean if path is paths[0] else load_checkpoint(path)
            for difference in _differences(mean, checkpoint, weights):
                raise UserError(f"{path} cannot be averaged with {paths[0]}: {difference}")
            with as_user_errors(path):
                parameters = checkpoint.chosen(weights)
                check_finite(parameters)
            for name, total in sums.items():
                total += parameters[name]
            progress.advance()
        means = {name: (total / len(paths)).astype(np.float32) for name, total in sums.items()}
    names = {"averaged": relative_names(paths)}
    return dataclasses.replace(mean, weights=means, progress=names, optimizer=None, ema=None)


def trim_vocabulary(checkpoint: Checkpoint, paths: Sequence[Path]) -> Checkpoint:
    """Return a checkpoint with only the pieces that files use, see `trimmed`. Raises UserError for unreadable files."""
    texts = (chunk for path in paths for chunk in chunks(read_lines(path), _LINES))
    result = checkpoint.with_vocabularies(trimmed((checkpoint.source, checkpoint.target), texts))
    for side in ("source", "target"):
        sizes = (len(getattr(each, side).vocab) for each in (result, checkpoint))
        logger.info("kept %d of %d pieces of the %s vocabulary", *sizes, side)
    return result


def relative_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths of files relative to their closest common folder."""
    absolute = [path.absolute() for path in paths]
    folder = os.path.commonpath([path.parent for path in absolute])
    return [str(path.relative_to(folder)) for path in absolute]


def _differences(a: Checkpoint, b: Checkpoint, weights: str) -> Iterator[str]:
    """Describe each difference that prevents averaging `b` with `a`: model options first, then languages and data."""
    yield from model_differences(a.model_config, b.model_config, but_for=a.model_config.dropout_options)
    if a.languages != b.languages:
        yield f"it translates {'-'.join(b.languages)}, not {'-'.join(a.languages)}"
    yield from tokenizer_differences((a.source, a.target), (b.source, b.target))
    if weights != "trained" and (a.ema is None) != (b.ema is None):
        yield f"it has {'a' if b.ema else 'no'} moving average of the weights: use --weights trained"
