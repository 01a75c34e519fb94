"""Leftovers of killed processes: finds, opens and removes temporary files and folders of this user only.

Their names are predictable, and other users may be able to write to the same folder. So symlinks with such names are
never followed, and nothing is opened or removed unless an earlier nmtkit process of this user can have created it.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nmtkit.errors import UserError

NamePredicate = Callable[[str], bool]  # whether nmtkit writes files of this name
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def staging_folders(resolved: Path) -> tuple[Path, Path]:
    """The hidden folders beside a destination, for the new content and for the replaced one."""
    return resolved.parent / f".{resolved.name}.partial", resolved.parent / f".{resolved.name}.replaced"


def obstruction_error(path: Path, reason: str) -> UserError:
    """The error for a temporary name that something else has."""
    return UserError(f"{path} is in the way ({reason}): remove it, or choose another destination")


def foreign_reason(status: os.stat_result, file_type: int, folder: Path) -> str | None:
    """Why an entry cannot be a leftover of this user of the given file type (S_IFREG or S_IFDIR); None if it can."""
    if stat.S_IFMT(status.st_mode) != file_type:
        return f"it is not a {'folder' if file_type == stat.S_IFDIR else 'file'}"
    return None if status.st_uid == _creating_user(folder) else "it belongs to another user"


def _creating_user(folder: Path) -> int:
    """The user id of files that this process creates in a folder. On NFS it may be that of `nobody`."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_uid


def open_leftover_file(path: Path) -> BinaryIO:
    """Open a leftover file of this user. One with a second hard link is refused, as it may be a result."""
    status = path.lstat()
    reason = foreign_reason(status, stat.S_IFREG, path.parent) or (
        "it has other hard links" if status.st_nlink > 1 else None
    )
    if reason:
        raise obstruction_error(path, reason)
    return open(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))


def open_own_folder(path: Path) -> int | None:
    """Open a folder of this user, None if it does not exist. Raises UserError if something else has its name."""
    try:
        if reason := foreign_reason(path.lstat(), stat.S_IFDIR, path.parent):
            raise obstruction_error(path, reason)
        return os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError:
        return None


def check_contents(descriptor: int, path: Path, is_own: NamePredicate) -> None:
    """Raise UserError if the open folder at `path` holds anything but files whose names `is_own` accepts."""
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if not is_own(entry.name):
                raise obstruction_error(path, f"it holds {entry.name}, which nmtkit does not write there")
            if not entry.is_file(follow_symlinks=False):
                raise obstruction_error(path, f"it holds {entry.name}, which is not a regular file")


def has_leftover_folder(path: Path, is_own: NamePredicate) -> bool:
    """Whether there is a leftover folder at `path`. Raises UserError if something else has its name."""
    descriptor = open_own_folder(path)
    if descriptor is None:
        return False
    try:
        check_contents(descriptor, path, is_own)
    finally:
        os.close(descriptor)
    return True


def remove_leftover_folder(path: Path, is_own: NamePredicate) -> None:
    """Remove a leftover folder, if there is one; another process may remove it at the same time.

    Raises UserError if something else has its name.
    """
    descriptor = open_own_folder(path)
    if descriptor is None:
        return
    try:
        check_contents(descriptor, path, is_own)
        remove_files(descriptor)
    finally:
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()


def remove_files(descriptor: int) -> None:
    """Remove the files of an open folder, even if its path has been replaced meanwhile."""
    for name in os.listdir(descriptor):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=descriptor)
