"""Atomic writes: results are written to a temporary name beside their destination, then renamed.

`leftovers` guards the temporary names, since other users may be able to write to the same folder.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from nmtkit.console.log import logger
from nmtkit.errors import RunError, UserError
from nmtkit.storage.access_rights import copy_access, copy_owner, set_mode
from nmtkit.storage.leftovers import (
    NamePredicate,
    check_contents,
    foreign_reason,
    has_leftover_folder,
    open_leftover_file,
    open_own_folder,
    remove_files,
    remove_leftover_folder,
    staging_folders,
)

_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_STAGED_FILE = re.compile(r"\.(.+)\.[0-9a-f]+\.partial", re.DOTALL)  # as `_staging_path` names it
_FOLDERS_NOT_SYNCED = (errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP)  # by some network file systems


@contextlib.contextmanager
def staged_folder(
    destination: Path,
    is_own: NamePredicate,
    may_replace: Callable[[Path], bool],
    is_resumable: Callable[[Path], bool] = lambda folder: False,
) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `destination` at the end, or removed on an error.

    An existing `destination` is replaced if it is empty or `may_replace` accepts it. A killed process leaves at most
    hidden folders beside it. The next process removes them if they belong to this user and hold only files whose names
    `is_own` accepts. Only this user can access the folder before it is renamed.
    On an error, the folder is kept for the next process if `is_resumable` accepts it or raises RunError.

    Raises UserError if the destination exists and may not be replaced, cannot be created, or is being written by
    another process, or if something else has the name of a hidden folder. Raises RunError if writing fails.
    """
    destination = _resolve_checked(destination)
    if not destination.name:
        raise UserError(f"{destination} is the root folder: choose another destination")
    staging, replaced = staging_folders(destination)
    with _locked_staging_folder(staging, destination, is_own, is_resumable) as (descriptor, mode):
        try:
            _restore_replaced(replaced, destination, is_own)  # killed between the renames below
            remove_leftover_folder(replaced, is_own)  # killed after both renames
            _check_replaceable(destination, may_replace)
            yield staging
            _check_replaceable(destination, may_replace)  # again: it may have been created since
            fsync_folder(staging)
            if destination.exists():
                copy_access(destination, descriptor)
                _set_aside(destination, replaced, is_own)
            else:
                set_mode(descriptor, mode)
            staging.rename(destination)
        except BaseException as error:
            with contextlib.suppress(OSError, RunError):  # kept if it cannot be read now
                if staging.exists() and not is_resumable(staging):  # else it has been renamed
                    remove_files(descriptor)
                    staging.rmdir()
            with contextlib.suppress(OSError, UserError):
                _restore_replaced(replaced, destination, is_own)  # ended between the renames
            if isinstance(error, OSError):
                raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
            raise
        fsync_entries(destination.parent)
        with contextlib.suppress(OSError, UserError):
            remove_leftover_folder(replaced, is_own)


def _set_aside(folder: Path, replaced: Path, is_own: NamePredicate) -> None:
    """Rename a folder that will be replaced; remove it where overlayfs cannot rename that of a container's image."""
    try:
        folder.rename(replaced)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        remove_leftover_folder(folder, is_own)


def _restore_replaced(replaced: Path, destination: Path, is_own: NamePredicate) -> None:
    """Give a replaced folder its name back if nothing has taken its place."""
    if has_leftover_folder(replaced, is_own) and not destination.exists():
        replaced.rename(destination)


def _check_replaceable(folder: Path, may_replace: Callable[[Path], bool]) -> None:
    """Raise UserError if a folder exists that may not be replaced, or that could not be removed afterwards."""
    if not folder.exists():
        return
    if os.path.ismount(folder):
        raise UserError(f"{folder} is a mount point, which cannot be replaced: choose a folder inside it")
    if folder.is_dir() and folder.samefile(os.curdir):
        raise UserError(f"{folder} is the current folder, which cannot be replaced: run the command from another one")
    if not folder.is_dir() or (any(folder.iterdir()) and not may_replace(folder)):
        raise UserError(
            f"{folder} exists, and this command did not write all of it: choose another destination, or remove it"
        )
    if not os.access(folder, os.W_OK | os.X_OK):  # its files could not be removed
        raise UserError(f"{folder} is read-only, so it cannot be replaced: choose another destination")
    if reason := foreign_reason(folder.stat(), stat.S_IFDIR, folder.parent):
        raise UserError(f"{folder} cannot be replaced ({reason}): choose another destination")


def resolve(path: Path) -> Path:
    """Resolve symlinks. `Path.resolve` raises an error that is not an OSError for a loop."""
    return Path(os.path.realpath(path))


def _resolve_checked(destination: Path) -> Path:
    """Resolve the symlinks of a destination. Raises UserError for one that `check_symlinks` refuses."""
    check_symlinks(destination)
    return resolve(destination)


def check_symlinks(destination: Path) -> None:
    """Raise UserError if the path of a destination has a symlink that another user may have planted.

    A symlink must belong to this user or to root, or be in a folder that only its owner can write to.
    """
    for path in (destination, *destination.parents):
        if path.is_symlink():
            _check_owner(path, "symlink")


def _check_owner(path: Path, kind: str) -> None:
    """Raise UserError for a symlink or pipe that another user may have planted in a folder."""
    status, folder = path.lstat(), path.parent.stat()
    is_private = not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and status.st_uid == folder.st_uid
    if status.st_uid not in (os.geteuid(), 0) and not is_private:
        raise UserError(f"{path} is a {kind} of another user: choose another destination")


def resolve_file(path: Path) -> Path:
    """Resolve the symlinks of a file to write. Special files stay as they are: /dev/stdout may be an unnamed pipe.

    Raises UserError for a symlink or a named pipe that another user may have planted.
    """
    resolved = _resolve_checked(path)
    if not path.exists() or path.is_file():
        return resolved
    if resolved.is_fifo():
        _check_owner(resolved, "pipe")
    return path


def check_regular(path: Path) -> None:
    """Raise UserError if `path` exists and is not a regular file.

    Writing through a symlink would leave the folder, and opening a named pipe would wait for a reader.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            found = "a symlink" if stat.S_ISLNK(mode) else "not a file"
            raise UserError(f"{path} is {found}: remove it, or choose another folder")


def check_writable(destination: Path) -> None:
    """Raise UserError if `staged_file` could not write `destination`. Special files are not tried."""
    resolved = resolve_file(destination)
    if not _is_special_file(resolved) or resolved.is_dir():  # opening a pipe would already have an effect
        with _opened(resolved):
            pass


def final_name(name: str) -> str | None:
    """The name that a temporary file of `staged_file` gets at the end; None for other names."""
    return match[1] if (match := _STAGED_FILE.fullmatch(name)) else None


@contextlib.contextmanager
def staged_file(destination: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that is renamed to `destination` at the end, or removed on an error.

    Special files such as pipes and /dev/null are written directly. Raises UserError if the destination cannot be
    created, and RunError if writing fails.
    """
    destination = resolve_file(destination)
    try:
        with _opened(destination) as (file, staging):
            yield file
            if staging is None:
                return
            file.flush()
            copy_owner(destination, file.fileno())
            os.fsync(file.fileno())
            file.close()
            _replace(destination, staging)
        fsync_entries(destination.parent)
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error


def _replace(destination: Path, staging: Path) -> None:
    """Rename a complete file to its destination. One that is a mount point, as of `docker -v`, gets its content."""
    try:
        staging.replace(destination)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with staging.open("rb") as content, destination.open("wb") as mounted:
            shutil.copyfileobj(content, mounted)
            mounted.flush()
            os.fsync(mounted.fileno())
        staging.unlink()


def link_file(source: Path, destination: Path) -> None:
    """Make `destination` a hard link to `source` in the same folder, atomically replacing an existing file.

    Copies the file if the file system has no hard links, and raises the errors of `staged_file`.
    """
    staging = _staging_path(destination)
    try:
        try:
            os.link(source, staging)
        except OSError:  # a file system without hard links
            with staged_file(destination) as file, source.open("rb") as content:
                shutil.copyfileobj(content, file)
            return
        try:
            staging.replace(destination)
        finally:
            staging.unlink(missing_ok=True)  # renaming over a link to the same file does nothing
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error


def remove_partial_files(folder: Path, is_own: NamePredicate) -> None:
    """Remove temporary files of killed processes of this user, if `is_own` accepts their final names."""
    for path in folder.glob(".*.partial"):
        name = final_name(path.name)
        if name and is_own(name) and foreign_reason(path.lstat(), stat.S_IFREG, folder) is None:
            path.unlink(missing_ok=True)


def _is_special_file(destination: Path) -> bool:
    """Whether a destination is a special file, which is written directly."""
    return destination.exists() and not destination.is_file()


def _staging_path(destination: Path) -> Path:
    """A new temporary name. The process id would not do: two containers that share a folder may have the same."""
    return destination.with_name(f".{destination.name}.{os.urandom(4).hex()}.partial")


@contextlib.contextmanager
def _opened(destination: Path) -> Iterator[tuple[BinaryIO, Path | None]]:
    """Open the file that `staged_file` writes to, new and empty; a temporary one is removed unless it was renamed.

    Yields it with the temporary path, None for a special file. Raises UserError if it cannot be opened.
    """
    staging = None if _is_special_file(destination) else _staging_path(destination)
    try:
        try:
            file = destination.open("wb") if staging is None else _create(staging, destination)
        except OSError as error:
            raise UserError(f"cannot write {destination}: {error.strerror}") from error
        with file:
            if staging is not None:
                copy_access(destination, file.fileno())
            yield file, staging
    finally:  # also after a signal
        if staging is not None:
            with contextlib.suppress(OSError):
                staging.unlink(missing_ok=True)


def _create(path: Path, destination: Path) -> BinaryIO:
    """Create a file, for this user only if it will replace one: another user could open it before it is as private."""
    permissions = 0o600 if destination.exists() else 0o666
    file: BinaryIO = open(path, "x+b", opener=lambda name, flags: os.open(name, flags, permissions))  # noqa: SIM115
    return file


def partial_path(resolved: Path) -> Path | None:
    """The file that `resumable_file` writes until the `resolved` one is complete; None if that is written directly."""
    return None if _is_special_file(resolved) else resolved.with_name(f"{resolved.name}.partial")


@contextlib.contextmanager
def resumable_file(destination: Path, resume: bool) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to `destination` at the end; on an error it is kept as `destination`.partial.

    With `resume`, an existing .partial file is opened at its beginning with its content; otherwise it is truncated. An
    empty .partial file is removed. Special files are written directly. Raises UserError if the destination cannot be
    created or resumed, or is being written by another process, or if something else has the name of the .partial file.
    Raises RunError if writing fails.
    """
    destination = resolve_file(destination)
    if (partial := partial_path(destination)) is None:
        if resume:
            raise UserError(f"--resume: {destination} is not a regular file, so there is no partial output to resume")
        with staged_file(destination) as file:
            yield file
        return
    file = _open_exclusively(partial, destination)
    try:
        with file:
            copy_access(destination, file.fileno())
            if not resume:
                file.truncate()
            yield file
            file.flush()
            copy_owner(destination, file.fileno())  # a partial file of another user could not be resumed
            os.fsync(file.fileno())
            _replace(destination, partial)
        fsync_entries(destination.parent)
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            if not partial.lstat().st_size:
                partial.unlink()


def _open_exclusively(path: Path, destination: Path) -> BinaryIO:
    """Open a file to read and write, create it if necessary, and lock it against other processes."""
    try:
        try:
            file = _create(path, destination)
        except FileExistsError:
            file = open_leftover_file(path)
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror}") from error
    try:
        _lock(file.fileno(), path, destination)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def _locked_staging_folder(
    staging: Path, destination: Path, is_own: NamePredicate, is_resumable: Callable[[Path], bool]
) -> Iterator[tuple[int, int]]:
    """Create the staging folder, accessible to this user only, and lock it against other processes.

    It is empty, or a leftover that `is_resumable` accepts. Yields its descriptor, and the mode to restore at the end.
    """
    with contextlib.ExitStack() as stack:
        try:
            leftover = _open_leftover(staging, destination, is_own, is_resumable, stack)
            opened = leftover or _open_new(staging, destination, stack)
        except OSError as error:
            raise UserError(f"cannot write {destination}: {error.strerror}") from error
        yield opened


def _open_leftover(
    staging: Path,
    destination: Path,
    is_own: NamePredicate,
    is_resumable: Callable[[Path], bool],
    stack: contextlib.ExitStack,
) -> tuple[int, int] | None:
    """Open and lock a leftover that `is_resumable` accepts; remove any other. Returns its descriptor and final mode."""
    if (leftover := open_own_folder(staging)) is None:
        return None
    stack.callback(os.close, leftover)
    _lock(leftover, staging, destination)
    check_contents(leftover, staging, is_own)
    mode = os.fstat(leftover).st_mode
    if not mode & _GROUP_AND_OTHERS and is_resumable(staging):  # no other user can have put files there
        return leftover, mode | _mode_of_new_folders()
    remove_files(leftover)
    staging.rmdir()
    return None


def _open_new(staging: Path, destination: Path, stack: contextlib.ExitStack) -> tuple[int, int]:
    """Create and lock an empty folder. Returns its descriptor and final mode."""
    descriptor = _make_folder(staging, destination)
    stack.callback(os.close, descriptor)
    _lock(descriptor, staging, destination)
    mode = os.fstat(descriptor).st_mode
    set_mode(descriptor, mode & ~_GROUP_AND_OTHERS)
    check_contents(descriptor, staging, lambda name: False)  # from now on no other user can add files
    return descriptor, mode


def _mode_of_new_folders() -> int:
    mask = os.umask(_GROUP_AND_OTHERS)  # it can only be read by changing it
    os.umask(mask)
    return 0o777 & ~mask


def _make_folder(staging: Path, destination: Path) -> int:
    try:
        staging.mkdir(parents=True)
    except FileExistsError as error:
        raise _concurrent_writer_error(destination) from error
    descriptor = open_own_folder(staging)
    if descriptor is None:
        raise _concurrent_writer_error(destination)
    return descriptor


def _lock(descriptor: int, path: Path, destination: Path) -> None:
    """Lock the open file or folder at `path`. Raises UserError if another process has locked or removed it."""
    try:
        lock_or_warn(descriptor, str(destination))
        if not os.path.samestat(os.fstat(descriptor), path.lstat()):
            raise _concurrent_writer_error(destination)
    except (BlockingIOError, FileNotFoundError) as error:
        raise _concurrent_writer_error(destination) from error


def lock_or_warn(descriptor: int, name: str) -> None:
    """Lock an open file or folder. Raises BlockingIOError if another process has locked it.

    Warns, and calls it `name`, if the file system has no locks, such as Lustre without the mount option `flock`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        logger.warning("%s cannot be locked against other processes (%s)", name, error.strerror)


def _concurrent_writer_error(destination: Path) -> UserError:
    return UserError(f"{destination} is being written by another process")


def fsync_folder(folder: Path) -> None:
    """Flush every file of a folder, and the folder itself, to disk."""
    for path in folder.iterdir():
        fsync(path)
    fsync_entries(folder)


def fsync_entries(folder: Path) -> None:
    """Flush the names of the files in a folder to disk, if its file system can, and if this user may read it."""
    try:
        fsync(folder)
    except OSError as error:
        if error.errno not in _FOLDERS_NOT_SYNCED:
            raise


def fsync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
