"""TensorBoard: the numbers of a run as curves, and some validation sentences as text."""

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.storage.outputs import refuse_dataset
from nmtkit.training.save_dir import existing_part
from nmtkit.training.validation import Sample

# The tag of each number, by event and by its name in metrics.jsonl. The part before the slash is a group on the page.
TAGS = {
    "train": {
        "loss": "loss/loss",
        "nll": "loss/nll",
        "ppl": "loss/ppl",
        "lr": "optimizer/lr",
        "gradient_norm": "optimizer/gradient_norm",
        "skipped": "optimizer/skipped",
        "epoch": "data/epoch",
        "padding": "data/padding",
        "tokens_per_second": "speed/tokens_per_second",
        "waiting": "speed/waiting",
        "mfu": "speed/mfu",
        "peak_memory_gib": "speed/peak_memory_gib",
        "out_of_memory": "speed/out_of_memory",
        "minutes": "speed/minutes",
        "minutes_left": "speed/minutes_left",
        "processor_minutes": "speed/processor_minutes",
        "tflop": "speed/tflop",
    },
    "valid": {
        "valid_loss": "valid/loss",
        "valid_nll": "valid/nll",
        "valid_ppl": "valid/ppl",
        "valid_bleu": "valid/bleu",
        "best": "valid/best",
    },
}
# The charts of the page "Custom Scalars".
_LAYOUT = {
    "training and validation": {
        name: ["Multiline", [TAGS["train"][name], TAGS["valid"][f"valid_{name}"]]] for name in ("loss", "nll", "ppl")
    }
}


def _tag_of_dataset(event: str, name: str) -> str | None:
    """The tag of a number of one of several datasets: `valid_news_loss` is `news/valid_loss`. None for others."""
    kind, _, rest = name.partition("_")
    dataset, _, number = rest.rpartition("_")
    return f"{dataset}/{kind}_{number}" if kind == event and dataset else None


def check_board(folder: Path) -> None:
    """Raise UserError if a folder is a dataset or in one, or cannot be written. Creates nothing."""
    refuse_dataset(folder, f"--tensorboard {folder}")
    existing = existing_part(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--tensorboard {folder}: cannot be written ({existing} is not a writable folder)")


class Board:
    """An event file. A full disk ends the file, not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continue after an update; TensorBoard hides what an earlier start wrote beyond it.

        Raises UserError if the folder is a dataset, is in one, or cannot be written; a full disk is only a warning.
        """
        # Imported here, because these imports are slow. torch's SummaryWriter writes in a thread, which prints errors.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard.summary import custom_scalars

        check_board(folder)
        self._folder, self._event = folder, Event
        self._records: Any = None  # None once writing has failed
        try:
            self._records = _create(folder)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror})") from error
            self._end(error)
        self._write(update + 1, file_version="brain.Event:2")
        self._write(update + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(0, summary=custom_scalars(_LAYOUT))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the file."""
        if self._records is not None:
            self._records.close()

    def numbers(self, event: str, update: int, values: Mapping[str, Any]) -> None:
        """Add a point to the curve of each value that has one of the `TAGS`, or is of one dataset, and is a number."""
        from torch.utils.tensorboard.summary import scalar

        for name, value in values.items():
            tag = TAGS[event].get(name) or _tag_of_dataset(event, name)
            if tag is not None and isinstance(value, int | float):
                self._write(update, summary=scalar(tag, value))  # type: ignore[no-untyped-call]

    def samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Each sentence as `sentences/line_<n>`, translated by the model after this update."""
        from tensorboard.plugins.text.summary_v2 import text_pb  # torch's add_text appends /text_summary to the tag

        for sample in samples:
            texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
            # Indented text is verbatim in Markdown.
            rows = [f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items()]
            self._write(update, summary=text_pb(f"sentences/line_{sample.line}", "\n".join(rows)))

    def _write(self, update: int, **contents: Any) -> None:
        """Write an event, unless an earlier one has failed."""
        if self._records is None:
            return
        try:
            self._records.write(self._event(wall_time=time.time(), step=update, **contents).SerializeToString())
            self._records.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        """Warn of an error, and write nothing more."""
        logger.warning(
            "--tensorboard %s: cannot be written (%s); TensorBoard shows nothing more until the run is resumed",
            self._folder,
            error.strerror,
        )
        with contextlib.suppress(OSError):  # closing tries to write again
            self.close()
        self._records = None


def _create(folder: Path) -> Any:
    """A writer of records to a new event file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    # TensorBoard reads files by name: microseconds order runs that are resumed within a second.
    # Without a secret, another user of the folder could guess the name and create a symlink of that name.
    name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{secrets.token_hex(16)}"
    return RecordWriter((folder / name).open("xb"))
