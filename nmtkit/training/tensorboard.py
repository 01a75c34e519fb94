"""TensorBoard: the numbers of a run as curves, and some validation sentences as text."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.atomic_io import check_symlinks
from nmtkit.errors import UserError
from nmtkit.log import logger
from nmtkit.training.validation import Sample


class Board:
    """An event file. A full disk ends the file, not the run."""

    def __init__(self, folder: Path, update: int) -> None:
        """Continue after an update; TensorBoard hides what an earlier start wrote beyond it.

        Raises UserError if the folder cannot be written.
        """
        from torch.utils.tensorboard.writer import SummaryWriter  # slow to import, rarely needed

        check_symlinks(folder)
        self._folder, self._failed = folder, False
        # torch opens the file by a name made of the time and the process: whoever else may write to the folder must not
        # be able to guess it, and to put a symlink there.
        suffix = f".{secrets.token_hex(16)}"
        try:
            self._writer: Any = SummaryWriter(str(folder), purge_step=update + 1, filename_suffix=suffix)
        except OSError as error:
            raise UserError(f"--tensorboard {folder}: cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Write what is still buffered."""
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
                # Indented text is verbatim in Markdown.
                rows = [f"    {name:<11}  {' '.join(text.split())}" for name, text in texts.items()]
                self._writer.add_text(f"sentences/line_{sample.line}", "\n".join(rows), update)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        """Turn the first error into a warning, and ignore the later ones, which only repeat it."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "--tensorboard %s: cannot be written (%s); nothing more is shown until the run is started again",
                    self._folder,
                    error.strerror,
                )
            self._failed = True
