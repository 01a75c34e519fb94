"""Writes the metrics of a run as curves, and some validation sentences as text, for TensorBoard."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.training.validation import Sample

# The charts of the page "Custom Scalars".
_LAYOUT = {
    "training and validation": {
        name: ["Multiline", [f"train/{name}", f"valid/{name}"]] for name in ("loss", "nll", "ppl")
    }
}


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

    def numbers(self, event: str, update: int, values: Mapping[str, Any]) -> None:
        """Add a point for each value that is a number to its curve."""
        points = {tag(event, name): value for name, value in values.items() if isinstance(value, int | float)}
        self._write(lambda writer: [writer.add_scalar(name, value, update) for name, value in points.items()])

    def samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Add each sentence as `sentences/line_<n>`, with its translation after this update."""
        texts = {f"sentences/line_{sample.line}": _verbatim(sample) for sample in samples}
        self._write(lambda writer: [writer.add_text(name, text, update) for name, text in texts.items()])

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
    """Format the three texts of a sample, indented, so that Markdown shows them verbatim."""
    texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
    return "\n".join(f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items())
