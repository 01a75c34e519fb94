"""Atomic writes: results are written under an unpredictable name next to their destination, then renamed.

A killed process leaves only hidden files and folders next to its destination, which the next one removes or resumes.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from nmtkit.console.log import logger
from nmtkit.errors import NmtkitError, RunError, UserError

_HIDDEN = re.compile(r"\.(.+)\.[0-9a-f]+\.(partial|replaced)", re.DOTALL)  # names from `_hidden_path`
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FOLDERS_NOT_SYNCED = (errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP)  # errors of some network file systems


@contextlib.contextmanager
def staged_file(destination: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that is renamed to `destination` at the end, or removed on an error.

    Special files such as pipes and /dev/null are written directly. Raises UserError if the destination cannot be
    created, and RunError if writing fails.
    """
    destination = resolve_file(destination)
    staging = None if _is_special(destination) else _hidden_path(destination)
    path, mode = (destination, "wb") if staging is None else (staging, "x+b")
    try:
        with _as_run_errors(destination), _open(path, mode, destination) as file:
            yield file
            file.flush()
            if staging is not None:
                _publish(file, staging, destination)
    finally:
        if staging is not None:
            with contextlib.suppress(OSError):
                staging.unlink(missing_ok=True)


@contextlib.contextmanager
def resumable_file(destination: Path, resume: bool) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to `destination` at the end. After an error, it is kept as `destination`.partial.

    With `resume`, an existing .partial file keeps its content and is opened at its beginning; otherwise it is
    truncated. An empty .partial file is removed. Special files are written directly. Raises UserError if the
    destination cannot be created or resumed, or is being written by another process, and RunError if writing fails.
    """
    destination = resolve_file(destination)
    partial = partial_path(destination)
    if partial is None:
        if resume:
            raise UserError(f"--resume: {destination} is not a regular file, so there is no partial output to resume")
        with staged_file(destination) as file:
            yield file
        return
    file = _open_locked(partial, destination)
    try:
        with _as_run_errors(destination), file:
            if not resume:
                file.truncate()
            yield file
            file.flush()
            _publish(file, partial, destination)
    finally:
        with contextlib.suppress(OSError):
            if not partial.stat().st_size:
                partial.unlink()


def partial_path(resolved: Path) -> Path | None:
    """Return the file that `resumable_file` writes until `resolved` is complete; None for special files."""
    return None if _is_special(resolved) else resolved.with_name(f"{resolved.name}.partial")


@contextlib.contextmanager
def staged_folder(
    destination: Path, may_replace: Callable[[Path], bool], is_resumable: Callable[[Path], bool] = lambda folder: False
) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `destination` at the end, or removed on an error.

    An existing `destination` is replaced if it is empty or `may_replace` accepts it. The folder of a killed or failed
    process is yielded again if `is_resumable` accepts it. Raises UserError if the destination must not be replaced, or
    for the reasons of `resumable_file`.
    """
    destination = resolve(destination)
    _check_replaceable(destination, may_replace)
    with _as_run_errors(destination), _claimed_folder(destination, is_resumable) as staging:
        try:
            yield staging
            _check_replaceable(destination, may_replace)  # again: it may have been restored, or created since
            for path in (*staging.iterdir(), staging):
                fsync(path)
            _put_in_place(staging, destination)
        except BaseException:
            with contextlib.suppress(OSError):  # keep the folder if it cannot be read now
                if staging.exists() and not is_resumable(staging):
                    shutil.rmtree(staging)
            raise


def link_file(source: Path, destination: Path) -> None:
    """Make `destination` a hard link to `source` in the same folder, or else a copy, atomically. Raises RunError."""
    staging = _hidden_path(destination)
    with _as_run_errors(destination):
        try:
            os.link(source, staging)
        except OSError:  # the file system has no hard links
            with staged_file(destination) as file, source.open("rb") as content:
                shutil.copyfileobj(content, file)
            return
        try:
            staging.replace(destination)
        finally:
            staging.unlink(missing_ok=True)  # renaming over a link to the same file does nothing


def remove_partial_files(folder: Path, is_own: Callable[[str], bool]) -> None:
    """Remove temporary files of killed processes if `is_own` accepts their final names."""
    for path in folder.glob(".*.partial"):
        match = _HIDDEN.fullmatch(path.name)
        if match and is_own(match[1]) and path.is_file():
            path.unlink(missing_ok=True)


def check_writable(destination: Path) -> None:
    """Raise UserError if `staged_file` could not write `destination`. Does not try special files."""
    resolved = resolve_file(destination)
    if resolved.is_dir():
        raise UserError(f"cannot write {destination}: Is a directory")
    if not _is_special(resolved):  # opening a pipe would have an effect
        staging = _hidden_path(resolved)
        _open(staging, "x+b", resolved).close()
        staging.unlink(missing_ok=True)


def resolve(path: Path) -> Path:
    """Resolve symlinks. Raises OSError for a loop, unlike `Path.resolve`."""
    return Path(os.path.realpath(path))


def resolve_file(path: Path) -> Path:
    """Resolve symlinks in the path of a file to write, except special files: /dev/stdout may be an unnamed pipe."""
    return path if _is_special(path) else resolve(path)


def lock(descriptor: int, name: str) -> bool:
    """Lock an open file or folder. Raises BlockingIOError if a different process has locked it. Warns with `name` and
    returns False if the file system has no locks, such as Lustre without the mount option `flock`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        logger.warning("%s cannot be locked against other processes (%s)", name, error.strerror)
        return False
    return True


def fsync(path: Path) -> None:
    """Flush a file, or the names of files in a folder, to disk. Skips folders that cannot be flushed."""
    try:
        with _descriptor(path) as descriptor:
            os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in _FOLDERS_NOT_SYNCED:
            raise


@contextlib.contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _as_run_errors(destination: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error


def _hidden_path(destination: Path, kind: str = "partial") -> Path:
    return destination.with_name(f".{destination.name}.{secrets.token_hex(8)}.{kind}")


def _hidden_folders(destination: Path, kind: str) -> list[Path]:
    """List the folders next to a destination with names from `_hidden_path`."""
    beside = [path for path in destination.parent.glob(f".*.{kind}") if path.is_dir() and not path.is_symlink()]
    matches = ((_HIDDEN.fullmatch(path.name), path) for path in sorted(beside))
    return [path for match, path in matches if match and match[1] == destination.name]


def _is_special(path: Path) -> bool:
    """Whether a destination is a special file, such as a pipe, which is written directly."""
    return path.exists() and not path.is_file()


def _open_locked(partial: Path, destination: Path) -> BinaryIO:
    """Open a .partial file to read and write, create it if necessary, and lock it."""
    file = _open(partial, "r+b", destination, os.O_CREAT | os.O_NOFOLLOW)
    try:
        lock(file.fileno(), str(destination))
        is_same = partial.exists() and os.path.samestat(os.fstat(file.fileno()), partial.stat())
    except BlockingIOError:
        is_same = False
    if not is_same:  # also after its writer has just renamed it
        file.close()
        raise _busy(destination)
    return file


def _open(path: Path, mode: str, destination: Path, more: int = 0) -> BinaryIO:
    """Open `destination`, or a file that will become it. If that replaces an existing file, which may be private, only
    this user has access until it is complete."""
    permissions = 0o600 if destination.exists() else 0o666
    try:
        return cast(BinaryIO, open(path, mode, opener=lambda name, flags: os.open(name, flags | more, permissions)))
    except OSError as error:
        raise _cannot_create(destination, error) from error


def _publish(file: BinaryIO, staging: Path, destination: Path) -> None:
    """Flush a complete file to disk, and rename it to its destination with the access rights of the replaced file."""
    _copy_access(destination, file.fileno())
    os.fsync(file.fileno())
    try:
        staging.replace(destination)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with staging.open("rb") as content, destination.open("wb") as mounted:  # a mount point, as with `docker -v`
            shutil.copyfileobj(content, mounted)
            mounted.flush()
            os.fsync(mounted.fileno())
        staging.unlink()
    fsync(destination.parent)


def _copy_access(replaced: Path, descriptor: int) -> None:
    """Copy permissions, and if possible group and owner, of the replaced file or folder to an open one, as root may
    replace the user's files in a container. If the group cannot be set, no group gets access."""
    try:
        status = replaced.stat()
    except OSError:  # nothing is replaced
        return
    mode = stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR
    try:
        os.fchown(descriptor, -1, status.st_gid)
    except OSError:
        mode &= ~stat.S_IRWXG
    with contextlib.suppress(OSError):
        os.fchown(descriptor, status.st_uid, -1)
    with contextlib.suppress(OSError):  # some file systems have no permissions
        os.fchmod(descriptor, mode)


@contextlib.contextmanager
def _claimed_folder(destination: Path, is_resumable: Callable[[Path], bool]) -> Iterator[Path]:
    """Create the staging folder of a destination, or take a resumable one, and lock it against other processes. Removes
    remains of killed processes, and restores a destination that one of them was replacing."""
    new = staging = _hidden_path(destination)
    with contextlib.ExitStack() as stack:
        try:
            new.mkdir(0o700 if destination.exists() else 0o777, parents=True)
            stack.callback(_remove_if_empty, new)
            has_locks = _lock_folder(new, destination, stack)
            for leftover in _hidden_folders(destination, "partial"):
                if leftover == new or (has_locks and not _lock_folder(leftover, destination, stack)):
                    continue
                if staging == new and is_resumable(leftover):
                    staging = leftover
                elif has_locks:  # otherwise its process may still run
                    shutil.rmtree(leftover)
            for replaced in _hidden_folders(destination, "replaced"):
                if destination.exists():
                    shutil.rmtree(replaced, ignore_errors=True)
                else:
                    replaced.rename(destination)
        except BlockingIOError as error:
            raise _busy(destination) from error
        except OSError as error:
            raise _cannot_create(destination, error) from error
        yield staging


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _lock_folder(folder: Path, destination: Path, stack: contextlib.ExitStack) -> bool:
    """Lock a folder until the `stack` closes. Returns False if it has vanished or the file system has no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    stack.callback(os.close, descriptor)
    return lock(descriptor, str(destination))


def _check_replaceable(folder: Path, may_replace: Callable[[Path], bool]) -> None:
    if not folder.name or os.path.ismount(folder):
        raise UserError(f"{folder} is a mount point, which cannot be replaced: choose a folder inside it")
    if not folder.exists():
        return
    if folder.is_dir() and folder.samefile(os.curdir):
        raise UserError(f"{folder} is the current folder, which cannot be replaced: run the command in a different one")
    if not folder.is_dir() or (any(folder.iterdir()) and not may_replace(folder)):
        raise UserError(
            f"{folder} exists, and this command did not write all of it: choose a different destination, or remove it"
        )


def _put_in_place(staging: Path, destination: Path) -> None:
    replaced = _hidden_path(destination, "replaced")
    with _descriptor(staging) as descriptor:
        _copy_access(destination, descriptor)
    try:
        if destination.exists():
            try:
                destination.rename(replaced)
            except OSError as error:
                if error.errno != errno.EXDEV:  # overlayfs cannot rename a folder of a container's image
                    raise
                shutil.rmtree(destination)
        staging.rename(destination)
    except BaseException:
        with contextlib.suppress(OSError):
            replaced.rename(destination)
        raise
    fsync(destination.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _cannot_create(destination: Path, error: OSError) -> NmtkitError:
    kind = RunError if error.errno in _FULL else UserError
    return kind(f"cannot write {destination}: {error.strerror}")


def _busy(destination: Path) -> UserError:
    return UserError(f"{destination} is being written by another process")
