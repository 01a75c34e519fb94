"""The scores and the training of a finished run of a recipe."""

import re
from pathlib import Path
from typing import NamedTuple

from nmtkit.errors import UserError

FILE = "scores.txt"  # in the folder of a run: what nmt-generate printed


class Bleu(NamedTuple):
    """The sacreBLEU of a run, and its tokenization: 13a, char, …"""

    value: float
    tokenization: str


def read_bleu(folder: Path) -> Bleu:
    """The BLEU of a run. Raises UserError if it is unfinished."""
    path = folder / FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = re.search(r"^BLEU\S*\|tok:([^|\s]+)\S* = (\d+\.\d+) ", text, re.MULTILINE)
    if found is None:
        remedy = "remove it, and call make again" if path.exists() else "finish this run with make"
        raise UserError(f"{path} has no BLEU: {remedy}")
    return Bleu(float(found[2]), found[1])


def training_file(folder: Path, name: str) -> Path:
    """A file of the training of a run, in its save folder. Raises UserError if it has been removed."""
    path = folder / "checkpoints" / name
    if not path.exists():
        again = f"remove {folder / 'trained'}, and call make to train again"
        raise UserError(f"{path} is missing: bring it back, or {again}")
    return path
