"""What TensorBoard shows of a run: its numbers as curves, and some validation sentences as text."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.training.validation import Sample


class Board:
    """An event file. A disk that takes no more ends the file, and not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Goes on after an update: what an earlier run wrote beyond it is shown no more.

        Raises UserError where nothing can be written.
        """
        from torch.utils.tensorboard.writer import SummaryWriter  # slow to import, seldom asked for

        self._folder, self._failed = folder, False
        # torch opens the file by a name made of the time and the process: whoever else may write to the folder must not
        # be able to guess it, and to put a symlink there.
        suffix = f".{secrets.token_hex(16)}"
        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=update + 1, filename_suffix=suffix)
        except OSError as error:
            raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Write what is still in memory."""
        with self._forgiving():
            self._writer.close()

    def numbers(self, event: str, update: int, values: Mapping[str, Any]) -> None:
        """A point of the curve `event/name` for each value that is a number."""
        with self._forgiving():
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{event}/{name}", value, update)

    def samples(self, update: int, samples: Sequence[Sample]) -> None:
        """Each sentence as `sentences/line_<n>`, translated by the model after this update."""
        with self._forgiving():
            for sample in samples:
                texts = {"source": sample.source, "reference": sample.reference, "translation": sample.translation}
                # Indented, it is shown as it stands: Markdown takes no notice of the characters in it.
                rows = [f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items()]
                self._writer.add_text(f"sentences/line_{sample.line}", "\n".join(rows), update)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """A warning, the first time, instead of an error; after it the writer only repeats the error."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "--tensorboard %s: cannot be written (%s); it shows no more until the run is started again",
                    self._folder,
                    error.strerror,
                )
            self._failed = True
