"""Where the numbers of a run go: to the log, to `metrics.jsonl` in the save folder, and to TensorBoard."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nmtkit.atomic_io import staged_file
from nmtkit.log import logger, report, to_json
from nmtkit.training.tensorboard import Board
from nmtkit.training.validation import Sample

METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends one JSON object a line; after a restart, lines beyond the checkpoint gone back to are dropped first.

    Each object has `event` ("train" or "valid") and `update`, then the numbers of that event. What a run makes up for
    at the update that it goes on from takes the place of what an earlier start has recorded there.
    """

    def __init__(self, save_dir: Path, update: int, tensorboard: Path | None) -> None:
        path = save_dir / METRICS
        if path.exists():
            _keep(path, lambda row: row["update"] <= update)
        self._path, self._start = path, update
        self._size = path.stat().st_size if path.exists() else 0  # of whole lines
        self._waiting = b""  # lines that the disk has not taken yet
        self._board = None if tensorboard is None else Board(tensorboard, update)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._waiting:
            self._append(b"")
        if self._board is not None:
            self._board.close()

    def write(self, event: str, update: int, values: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        """Record the numbers of an event, and log them; TensorBoard shows the samples too."""
        report(event, {"update": update, **values})
        if update == self._start and self._size:
            _keep(self._path, lambda row: (row["event"], row["update"]) != (event, update))
            self._size = self._path.stat().st_size
        self._append(to_json({"event": event, "update": update, **values}).encode() + b"\n")
        if self._board is not None:
            self._board.numbers(event, update, values)
            self._board.samples(update, samples)

    def sync(self) -> None:
        """See to it that what has been written stays, whatever happens to the machine."""
        if self._size:
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def _append(self, line: bytes) -> None:
        """Write a line, with those before it that could not be written: a full disk leaves no gap and no half line."""
        self._waiting += line
        try:
            with open(self._path, "r+b" if self._size else "wb", opener=_open_itself) as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(self._waiting)
        except OSError as error:
            logger.warning(
                "%s: cannot be written (%s); its lines are kept for the next time", self._path, error.strerror
            )
            return
        self._size += len(self._waiting)
        self._waiting = b""


def _open_itself(path: str, flags: int) -> int:
    """Open no symlink, and without waiting no pipe, that has taken the place of the file."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the other lines, and what is no such line, as one that a kill has cut."""
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            if wanted(json.loads(line)):
                kept.append(line + "\n")
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    with staged_file(path) as file:
        file.write("".join(kept).encode())
