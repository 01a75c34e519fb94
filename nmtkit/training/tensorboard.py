"""TensorBoard: the numbers of a run as curves, and some validation sentences as text."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.training.validation import VALIDATION, Sample

# The groups of training numbers on the page; all others form the group `speed`.
_GROUPS = {
    **dict.fromkeys(("loss", "nll", "ppl"), "loss"),
    **dict.fromkeys(("lr", "gradient_norm", "skipped"), "optimizer"),
    **dict.fromkeys(("epoch", "padding"), "data"),
}
# The charts of the page "Custom Scalars".
_LAYOUT = {
    "training and validation": {
        name: ["Multiline", [f"loss/{name}", f"valid/{name}"]] for name in ("loss", "nll", "ppl")
    }
}


def tag(event: str, name: str) -> str | None:
    """The tag of a number in an event of metrics.jsonl; the part before the slash is a group on the page.

    `valid_loss` is `valid/loss`; `valid_news_loss`, of one of several datasets, is `news/valid_loss`. None for the
    epoch of a validation, which has a curve already.
    """
    kind, _, rest = name.partition("_")
    dataset, _, number = rest.rpartition("_")
    if kind == event and dataset:
        return f"{dataset}/{kind}_{number}"
    if event == VALIDATION:
        return None if name == "epoch" else f"{event}/{name.removeprefix('valid_')}"
    return f"{_GROUPS.get(name, 'speed')}/{name}"


class Board:
    """An event file. A full disk ends the file, not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continue after an update; TensorBoard hides what an earlier start wrote beyond it."""
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
        """Add a point to the curve of each value that is a number."""
        points = {tag(event, name): value for name, value in values.items() if isinstance(value, int | float)}
        self._write(lambda writer: [writer.add_scalar(name, value, update) for name, value in points.items() if name])

    def samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Each sentence as `sentences/line_<n>`, translated by the model after this update."""
        texts = {f"sentences/line_{sample.line}": _verbatim(sample) for sample in samples}
        self._write(lambda writer: [writer.add_text(name, text, update) for name, text in texts.items()])

    def _write(self, add: Callable[[Any], object]) -> None:
        """Add to the file at once. After an error, warn and write nothing more."""
        if self._writer is None:
            return
        try:
            add(self._writer)
            self._writer.flush()
        except OSError as error:
            logger.warning(
                "--tensorboard %s: cannot be written (%s); TensorBoard shows nothing more until the run is resumed",
                self._folder,
                error.strerror,
            )
            with contextlib.suppress(OSError):  # closing tries to write again
                self.close()
            self._writer = None


def _verbatim(sample: Sample) -> str:
    """The three texts of a sample. Indented text is verbatim in Markdown."""
    texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
    return "\n".join(f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items())
