"""The mean of checkpoints of one model (§6.1: the last 5 of the base model, the last 20 of the big one)."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from nmtkit.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, read_progress
from nmtkit.errors import UserError
from nmtkit.log import Progress
from nmtkit.model.config import DROPOUTS, model_differences
from nmtkit.tokenizer import tokenizer_differences
from nmtkit.wording import counted


def last_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """The newest `count` checkpoints of a training run, oldest first; with `until`, none after that update.

    Raises UserError if there are fewer.
    """
    paths = [path for _, path in _up_to(folder, until)]
    if len(paths) < count:
        raise UserError(f"--last {count}: {_shortage(folder, len(paths), until)}")
    return paths[-count:]


def best_checkpoints(folder: Path, count: int, until: int | None = None) -> list[Path]:
    """The `count` best checkpoints of a training run, oldest first; with `until`, none after that update.

    Best by the value that each checkpoint recorded and the run judged by: the lowest validation loss, or the highest
    validation BLEU; of equal ones the newer. Raises UserError if there are fewer, or if they were not judged alike.
    """
    judged: list[tuple[float, int, Path]] = []
    metrics = set()
    splits = set()
    for update, path in _up_to(folder, until):
        progress = read_progress(path)
        metric = progress.get("best_metric")
        if metric is not None and progress.get(metric) is not None:
            metrics.add(metric)
            splits.add(frozenset(progress.get("validation_data", {}).items()))
            judged.append((progress[metric], update, path))
    if len(metrics) > 1:
        raise UserError(
            f"--best: the checkpoints in {folder} were judged by {' and '.join(sorted(metrics))}: list them"
        )
    if len(splits) > 1:
        raise UserError(f"--best: the checkpoints in {folder} were judged on different validation splits: list them")
    if len(judged) < count:
        raise UserError(f"--best {count}: {_shortage(folder, len(judged), until)} with a validation value")
    sign = -1 if metrics == {"valid_bleu"} else 1
    best = sorted(judged, key=lambda row: (sign * row[0], -row[1]))[:count]
    return [path for _, _, path in sorted(best, key=lambda row: row[1])]


def _up_to(folder: Path, until: int | None) -> list[tuple[int, Path]]:
    return [(update, path) for update, path in list_checkpoints(folder) if until is None or update <= until]


def _shortage(folder: Path, count: int, until: int | None) -> str:
    only = "only " if count else ""
    return f"{folder} has {only}{counted(count, 'checkpoint')}" + ("" if until is None else f" up to update {until}")


@torch.no_grad()
def average_checkpoints(paths: Sequence[Path], which: str = "auto") -> Checkpoint:
    """A checkpoint with the mean of the weights, summed in float64 with one checkpoint in memory at a time.

    `which` weights of each: see `WeightsConfig`. The result has no optimizer state; matrices that are tied stay tied.
    Raises UserError if a file is given twice, or naming the first difference if models, languages or vocabularies are
    not the same, or moving averages are in some and not in others.
    """
    _refuse_twice(paths)
    mean = load_checkpoint(paths[0])
    sums = {name: tensor.double() for name, tensor in mean.chosen(which).items()}
    with Progress("averaging", total=len(paths), unit="checkpoints") as progress:
        progress.advance()
        for path in paths[1:]:
            checkpoint = load_checkpoint(path)
            for difference in _differences(mean, checkpoint, which):
                raise UserError(f"{path} cannot be averaged with {paths[0]}: {difference}")
            for name, tensor in checkpoint.chosen(which).items():
                sums[name] += tensor
            progress.advance()
    return dataclasses.replace(
        mean,
        weights={name: (total / len(paths)).float() for name, total in sums.items()},
        progress={"averaged": distinct_names(paths)},
        optimizer=None,
        ema=None,
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
    yield from model_differences(a.model_config, b.model_config, but_for=DROPOUTS)
    if (a.source_language, a.target_language) != (b.source_language, b.target_language):
        yield (f"it translates {b.source_language}-{b.target_language}, not {a.source_language}-{a.target_language}")
    yield from tokenizer_differences("source", a.source, b.source)
    yield from tokenizer_differences("target", a.target, b.target)
    if which != "trained" and (a.ema is None) != (b.ema is None):
        yield f"it has {'a' if b.ema else 'no'} moving average of the weights (take --weights trained)"
    for name in sorted(a.weights.keys() | b.weights.keys()):
        shapes = [list(c.weights[name].shape) if name in c.weights else "missing" for c in (a, b)]
        if shapes[0] != shapes[1]:
            yield f"{name} is {shapes[1]}, not {shapes[0]}"
