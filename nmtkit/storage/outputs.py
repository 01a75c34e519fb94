"""Writes stdout, and checks that an output is not an input, a file of a training run, or inside a dataset folder.

Commands call the checks before long work, so that mistakes are reported at once.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nmtkit.errors import RunError, UserError
from nmtkit.storage.atomic import check_writable, resolve
from nmtkit.storage.run_files import refuse_run_file

DATASET = "dataset.json"  #: the description that makes a folder a dataset
DATASET_FORMAT = "nmtkit dataset"
_FORMAT_WITHIN = 256  # first bytes of the description, which name its format
_STDIN, _STDOUT = 0, 1  # descriptors


def check_output_file(output: Path, inputs: Iterable[Path | None]) -> None:
    """Raise UserError if a file cannot or must not be written. Special files such as pipes are accepted."""
    if output.is_file() or output.is_dir() or not output.exists():
        check_output_folder(output, inputs)
    check_writable(output)


def check_output_folder(output: Path, inputs: Iterable[Path | None]) -> None:
    """Raise UserError if an output is or contains an input, or belongs to a training run or a dataset."""
    real = resolve(output)
    for path in inputs:
        if path is not None and resolve(path).is_relative_to(real):
            raise UserError(f"{path} is an input and would be overwritten: choose a different output")
    if _is_same_file(output, _STDIN):
        raise UserError(f"{output} is the input from stdin and would be overwritten: choose a different output")
    if _is_same_file(output, _STDOUT):  # replacing it would lose its content and later output
        raise UserError(f"{output} is the file that stdout is redirected to: choose a different output, or omit it")
    refuse_run_file(output)
    refuse_dataset(real.parent, f"{output}: its folder")


def check_stdout(inputs: Iterable[Path | None], reads_stdin: bool) -> None:
    """Raise UserError if stdout is an input (stdin if `reads_stdin`), because the command might never end."""
    if reads_stdin and _is_same_file(_STDIN, _STDOUT):
        raise UserError("stdin is also stdout: redirect stdout to a different file")
    for path in inputs:
        if path is not None and _is_same_file(path, _STDOUT):
            raise UserError(f"{path} is also stdout: redirect stdout to a different file")


@contextmanager
def writing_stdout() -> Iterator[BinaryIO]:
    """Yield stdout. Raises RunError if it cannot be written, and BrokenPipeError if it has lost its reader."""
    try:
        yield sys.stdout.buffer
    except BrokenPipeError:
        raise  # the command exits silently
    except OSError as error:
        raise RunError(f"cannot write to stdout: {error.strerror or error}") from error


def is_dataset(folder: Path) -> bool:
    """Whether a folder contains nmtkit's dataset.json, even if the file is damaged or has a different version."""
    path = folder / DATASET
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return DATASET_FORMAT.encode() in file.read(_FORMAT_WITHIN)


def refuse_dataset(folder: Path, name: str) -> None:
    """Raise UserError if an output folder is a dataset, or is new and inside one. The message uses `name`."""
    if is_dataset(folder):
        raise UserError(f"{name} is a dataset, which may contain no other files: choose a different folder")
    if not folder.exists() and is_dataset(resolve(folder).parent):
        raise UserError(f"{name} is in a dataset, which may contain no other files: choose a different folder")


def _is_same_file(first: Path | int, second: Path | int) -> bool:
    """Whether two paths or descriptors refer to the same regular file."""
    try:
        one, other = (os.fstat(file) if isinstance(file, int) else file.stat() for file in (first, second))
        return stat.S_ISREG(one.st_mode) and os.path.samestat(one, other)
    except OSError:  # a missing file, or a closed descriptor
        return False
