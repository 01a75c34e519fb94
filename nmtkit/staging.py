"""Results that appear whole or not at all: made beside its final name and renamed."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from nmtkit.errors import RunError, UserError


@contextlib.contextmanager
def staged_folder(destination: Path, may_replace: Callable[[Path], bool]) -> Iterator[Path]:
    """A folder to write into, which becomes `destination` at the end, and vanishes if an error ends the block.

    What stands at `destination` is replaced if it is an empty folder or one that `may_replace` accepts. A process
    that is killed leaves at most a hidden folder beside it, which the next one clears away.

    Raises UserError when the destination is taken, cannot be made, or is being written by another process;
    RunError when writing fails.
    """
    destination = _real(destination)
    if not destination.name:
        raise UserError(f"{destination} is the root of all folders: choose another destination")
    staging = destination.with_name(f".{destination.name}.partial")
    replaced = destination.with_name(f".{destination.name}.replaced")
    with _locked(staging, destination):
        try:
            if replaced.exists() and not destination.exists():  # killed between the two renames below
                replaced.rename(destination)
            shutil.rmtree(replaced, ignore_errors=True)  # killed after both
            if destination.exists() and not _is_replaceable(destination, may_replace):
                raise UserError(f"{destination} exists and is something else: choose another destination, or remove it")
            yield staging
            _sync(staging)
            if destination.exists():
                destination.rename(replaced)
            staging.rename(destination)
        except BaseException as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
            raise
        _sync_entry(destination.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _is_replaceable(folder: Path, may_replace: Callable[[Path], bool]) -> bool:
    return folder.is_dir() and (not any(folder.iterdir()) or may_replace(folder))


def _real(path: Path) -> Path:
    """Where links lead; Path.resolve raises what is no OSError where they lead in a circle."""
    return Path(os.path.realpath(path))


def _file(path: Path) -> Path:
    """The same for a file to write, but for what is no ordinary one: /dev/stdout leads to a pipe, which has no name."""
    return path if path.exists() and not path.is_file() else _real(path)


def check_writable(destination: Path, sources: Iterable[Path] = ()) -> None:
    """Raise UserError where `staged_file` could not make this file, or it is one of those that it is to be made of: to
    know it before the work, and not after."""
    destination = _file(destination)
    staging, direct = _staging(destination)
    if direct and not destination.is_dir():
        return  # to open a pipe would be to use it
    for source in sources:
        if _real(source) == destination:
            raise UserError(f"{source} is read, and what is made of it would take its place: choose another output")
    _open_staging(staging, destination).close()
    staging.unlink()


@contextlib.contextmanager
def staged_file(destination: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `destination` at the end, and vanishes if an error ends the block.

    What is no ordinary file (a pipe, /dev/null) is written directly. Raises UserError when the destination cannot be
    made, RunError when writing fails.
    """
    destination = _file(destination)
    staging, direct = _staging(destination)
    file = _open_staging(staging, destination)
    try:
        with file:
            yield file
            if not direct:
                file.flush()
                os.fsync(file.fileno())
        if not direct:
            staging.replace(destination)
            _sync_entry(destination.parent)
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
    finally:
        if not direct:
            staging.unlink(missing_ok=True)


def _staging(destination: Path) -> tuple[Path, bool]:
    """Where a file is written, and whether this is the destination itself."""
    direct = destination.exists() and not destination.is_file()
    return destination if direct else destination.with_name(f".{destination.name}.{os.getpid()}.partial"), direct


def _open_staging(staging: Path, destination: Path) -> BinaryIO:
    try:
        return staging.open("wb")
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror}") from error


@contextlib.contextmanager
def resumable_file(destination: Path, resume: bool) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `destination` at the end; if an error ends the block, it stays beside it, with
    .partial behind its name.

    To `resume` is to get what is left of it, open at its beginning; otherwise it is begun anew. An empty one is not
    left. What is no ordinary file is written directly. Raises UserError when the destination cannot be made or gone on
    with, or is being written by another process; RunError when writing fails.
    """
    destination = _file(destination)
    if destination.exists() and not destination.is_file():
        if resume:
            raise UserError(f"--resume: {destination} is no ordinary file, so nothing of it was kept")
        with staged_file(destination) as file:
            yield file
        return
    partial = destination.with_name(f"{destination.name}.partial")
    file = _open_alone(partial, destination)
    try:
        with file:
            if not resume:
                file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            partial.replace(destination)
        _sync_entry(destination.parent)
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
    finally:
        if partial.exists() and not partial.stat().st_size:
            partial.unlink()


def _open_alone(path: Path, destination: Path) -> BinaryIO:
    """Open a file to read and write, made if need be, and keep other processes out of it."""
    try:
        file = open(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666))  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise UserError(f"{destination} is being written by another process") from error
    return file


@contextlib.contextmanager
def _locked(staging: Path, destination: Path) -> Iterator[None]:
    """Make the staging folder, empty, and keep other processes out of it."""
    with contextlib.ExitStack() as stack:
        try:
            staging.mkdir(parents=True, exist_ok=True)
            handle = os.open(staging, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in staging.iterdir():
                leftover.unlink()
        except BlockingIOError as error:
            raise UserError(f"{destination} is being written by another process") from error
        except OSError as error:
            raise UserError(f"cannot write {destination}: {error.strerror}") from error
        yield


def _sync(folder: Path) -> None:
    """Bring every file of the folder, and their names, to the disk."""
    for path in folder.iterdir():
        _sync_entry(path)
    _sync_entry(folder)


def _sync_entry(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
