"""The files of a training run in its save folder: their names, and the refusal to replace them."""

import os
import re
from pathlib import Path

from nmtkit.errors import UserError

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
OPTIONS, METRICS = "options.json", "metrics.jsonl"
UNUSABLE = ".unusable"  # suffix of a checkpoint that cannot be resumed

_NUMBERED = re.compile(r"checkpoint_(0|[1-9][0-9]*)\.pt")
_OTHERS = (LAST, BEST, OPTIONS, METRICS)


def list_checkpoints(save_dir: Path) -> list[tuple[int, Path]]:
    """The numbered checkpoints of a folder as (update, path), oldest first."""
    matches = ((_NUMBERED.fullmatch(path.name), path) for path in save_dir.glob("checkpoint_*.pt"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def checkpoint_path(save_dir: Path, update: int) -> Path:
    """The path of the checkpoint after `update` updates."""
    return save_dir / f"checkpoint_{update}.pt"


def is_run_file(name: str) -> bool:
    """Whether nmt-train writes files of this name."""
    name = name.removesuffix(UNUSABLE)
    return name in _OTHERS or _NUMBERED.fullmatch(name) is not None


def refuse_run_file(path: Path) -> None:
    """Raise UserError for an output path that is, or would be taken for, a file of a training run."""
    real = Path(os.path.realpath(path))
    if not is_run_file(real.name) or not _is_save_folder(real.parent):
        return
    problem = "belongs to a training" if real.exists() else "would be taken for a file of the training in that folder"
    raise UserError(f"{path} {problem}: choose another output")


def _is_save_folder(folder: Path) -> bool:
    """Whether a folder holds a checkpoint, or both of the other files, whose names are not unusual by themselves."""
    has_checkpoint = bool(list_checkpoints(folder)) or any((folder / name).exists() for name in (LAST, BEST))
    return has_checkpoint or all((folder / name).exists() for name in (OPTIONS, METRICS))
