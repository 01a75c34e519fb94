"""Writes the metrics of a run to `metrics.jsonl` in the save folder, and as curves and texts for TensorBoard."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.console.log import logger, to_json
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.run_files import METRICS
from nmtkit.training.save_dir import SaveDir
from nmtkit.training.validation import Sample

# The charts of the page "Custom Scalars".
_LAYOUT = {
    "training and validation": {
        name: ["Multiline", [f"train/{name}", f"valid/{name}"]] for name in ("loss", "nll", "ppl")
    }
}


class MetricsWriter:
    """Appends one JSON object per line. A resumed run first drops the lines after its checkpoint.

    Each object contains `event` ("train" or "valid") and `update`, then the metrics of that event. An event at the
    update of the checkpoint replaces the one that an earlier start recorded.
    """

    def __init__(self, save_dir: SaveDir, update: int, tensorboard: Path | None) -> None:
        self._path, self._start = save_dir.folder / METRICS, update
        self._size = _keep(self._path, lambda row: row["update"] <= update)  # bytes of whole lines
        self._waiting = b""  # lines not written yet
        self._board = None if tensorboard is None else Board(tensorboard, update)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._waiting:
            self._append(b"")
        if self._board is not None:
            self._board.close()

    def write(self, event: str, update: int, values: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        """Record the metrics of an event; the samples go to TensorBoard."""
        if update == self._start and self._size:
            self._size = _keep(self._path, lambda row: (row["event"], row["update"]) != (event, update))
        self._append(to_json({"event": event, "update": update, **values}).encode() + b"\n")
        if self._board is not None:
            self._board.write(event, update, values, samples)

    def sync(self) -> None:
        """Flush the file to disk, so that it survives a power failure. Does nothing if the file was removed."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            os.fsync(file.fileno())

    def _append(self, line: bytes) -> None:
        """Write a line after earlier lines that failed, so that a full disk leaves no gap and no partial line."""
        self._waiting += line
        try:
            if not self._path.exists():  # removed: start a new file
                self._size = 0
            with self._path.open("r+b" if self._size else "wb") as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(self._waiting)
        except OSError as error:
            logger.warning(
                "%s: cannot be written (%s); its lines are kept for the next attempt", self._path, error.strerror
            )
            return
        self._size += len(self._waiting)
        self._waiting = b""


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> int:
    """Keep only wanted lines, and no malformed ones, such as one that a kill has truncated. Return their bytes."""
    if not path.exists():
        return 0
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            if wanted(json.loads(line)):
                kept.append(line + "\n")
    with staged_file(path) as file:
        return file.write("".join(kept).encode())


def tag(event: str, name: str) -> str:
    """Return the tag of a metric, grouped by event: `valid_loss` becomes `valid/loss`."""
    return f"{event}/{name.removeprefix(f'{event}_')}"


class Board:
    """A TensorBoard event file. A full disk ends the file, but not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continue after an update; TensorBoard hides points that an earlier start wrote after it."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self._folder = folder
        try:
            self._writer: Any = SummaryWriter(folder, purge_step=update + 1)
        except OSError as error:
            raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror})") from error
        self._write(lambda writer: writer.add_custom_scalars(_LAYOUT))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def write(self, event: str, update: int, values: Mapping[str, Any], samples: Sequence[Sample] = ()) -> None:
        """Add a point to the curve of each number, and each sample as `sentences/line_<n>`."""

        def add(writer: Any) -> None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    writer.add_scalar(tag(event, name), value, update)
            for sample in samples:
                writer.add_text(f"sentences/line_{sample.line}", _verbatim(sample), update)

        self._write(add)

    def _write(self, add: Callable[[Any], object]) -> None:
        """Write to the file at once. After an error, warn and write nothing more."""
        if self._writer is None:
            return
        try:
            add(self._writer)
            self._writer.flush()
        except OSError as error:
            logger.warning(
                "--tensorboard %s: cannot be written (%s); TensorBoard gets no new data until the run is resumed",
                self._folder,
                error.strerror,
            )
            with contextlib.suppress(OSError):  # closing tries to write again
                self.close()
            self._writer = None


def _verbatim(sample: Sample) -> str:
    """Format a sample with indented lines, which Markdown shows verbatim."""
    texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
    return "\n".join(f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items())
