"""TensorBoard: the numbers of a run as curves, and some validation sentences as text."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.atomic_io import check_symlinks
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.outputs import refuse_dataset
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


class Board:
    """An event file. A full disk ends the file, not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continue after an update; TensorBoard hides what an earlier start wrote beyond it.

        Raises UserError if the folder cannot be written, or is a dataset.
        """
        from torch.utils.tensorboard.writer import SummaryWriter  # slow to import, rarely needed

        check_symlinks(folder)
        refuse_dataset(folder, f"--tensorboard {folder}")
        self._folder, self._failed = folder, False
        # torch's file name has only the time, host and process. Without a secret, another user of the folder could
        # guess it and create a symlink of that name.
        suffix = f".{secrets.token_hex(16)}"
        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=update + 1, filename_suffix=suffix)
        except OSError as error:
            raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror})") from error
        with self._forgiving():
            self._writer.add_custom_scalars(_LAYOUT)

    def close(self) -> None:
        """Write what is still buffered."""
        with self._forgiving():
            self._writer.close()

    def numbers(self, event: str, update: int, values: Mapping[str, Any]) -> None:
        """Add a point to the curve of each value that has one of the `TAGS`, or is of one dataset, and is a number."""
        with self._forgiving():
            for name, value in values.items():
                tag = TAGS[event].get(name) or _tag_of_dataset(event, name)
                if tag is not None and isinstance(value, int | float):
                    self._writer.add_scalar(tag, value, update)

    def samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Each sentence as `sentences/line_<n>`, translated by the model after this update."""
        from tensorboard.plugins.text.summary_v2 import text_pb  # torch's add_text appends /text_summary to the tag

        with self._forgiving():
            for sample in samples:
                texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
                # Indented text is verbatim in Markdown.
                rows = [f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items()]
                text = text_pb(f"sentences/line_{sample.line}", "\n".join(rows))
                self._writer.file_writer.add_summary(text, update)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Log the first error as a warning; later ones only repeat it and are ignored."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "--tensorboard %s: cannot be written (%s); TensorBoard shows nothing more until the run is resumed",
                    self._folder,
                    error.strerror,
                )
            self._failed = True
