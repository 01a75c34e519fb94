"""The names of a training run's files in its save folder, and a check that outputs do not replace them."""

import os
import re
from pathlib import Path

from nmtkit.errors import UserError

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
AVERAGED = "averaged.pt"  #: the result of --budget, which other commands may replace
OPTIONS, METRICS = "options.json", "metrics.jsonl"
UNUSABLE = ".unusable"  # suffix of a checkpoint that cannot be resumed

_NUMBERED = re.compile(r"checkpoint_(0|[1-9][0-9]*)\.pt")
_OTHERS = (LAST, BEST, OPTIONS, METRICS)


def list_checkpoints(save_dir: Path) -> list[tuple[int, Path]]:
    """List the numbered checkpoints in a folder as (update, path), oldest first."""
    matches = ((_NUMBERED.fullmatch(path.name), path) for path in save_dir.glob("checkpoint_*.pt"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def checkpoint_path(save_dir: Path, update: int) -> Path:
    """Return the path of the checkpoint after `update` updates."""
    return save_dir / f"checkpoint_{update}.pt"


def is_run_file(name: str) -> bool:
    """Whether nmt-train writes files with this name."""
    name = name.removesuffix(UNUSABLE)
    return name in _OTHERS or _NUMBERED.fullmatch(name) is not None


def refuse_run_file(path: Path) -> None:
    """Raise UserError if an output path is a file of a training run, or would be mistaken for one."""
    real = Path(os.path.realpath(path))
    if not is_run_file(real.name) or not _is_save_folder(real.parent):
        return
    problem = "belongs to a training run" if real.exists() else "would be mistaken for a file of the run in that folder"
    raise UserError(f"{path} {problem}: choose a different output")


def _is_save_folder(folder: Path) -> bool:
    """Whether a folder contains a checkpoint, or both other files of a run (each alone has a common name)."""
    has_checkpoint = bool(list_checkpoints(folder)) or any((folder / name).exists() for name in (LAST, BEST))
    return has_checkpoint or all((folder / name).exists() for name in (OPTIONS, METRICS))
