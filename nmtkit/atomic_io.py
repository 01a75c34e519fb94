"""Results that appear whole or not at all: written beside their final name, then renamed.

The names beside it are predictable, and other users may write to the same folder. So a symlink of such a name is never
followed, and nothing of such a name is overwritten or removed unless nmtkit can have left it when it ran for this user.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from nmtkit.errors import RunError, UserError

OwnName = Callable[[str], bool]
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_STAGED_FILE = re.compile(r"\.(.+)\.\d+\.partial", re.DOTALL)


@contextlib.contextmanager
def staged_folder(destination: Path, is_own: OwnName, may_replace: Callable[[Path], bool]) -> Iterator[Path]:
    """A folder to write to, which becomes `destination` at the end, or is removed if an error ends the block.

    An existing `destination` is replaced if it is an empty folder or one that `may_replace` accepts. A killed process
    leaves at most hidden folders beside it. The next one clears them if they are this user's and hold nothing but files
    whose names `is_own` accepts. Until the end, only this user has access to the folder.

    Raises UserError when the destination is taken, cannot be made, or is being written by another process, or when
    something else has the name of a hidden folder; RunError when writing fails.
    """
    destination = _followed(destination)
    if not destination.name:
        raise UserError(f"{destination} is the root of all folders: choose another destination")
    staging = destination.with_name(f".{destination.name}.partial")
    replaced = destination.with_name(f".{destination.name}.replaced")
    with _locked(staging, destination, is_own) as (handle, mode):
        try:
            if _is_left(replaced, is_own) and not destination.exists():  # killed between the two renames below
                replaced.rename(destination)
            _remove_folder(replaced, is_own)  # killed after both
            _check_replaceable(destination, may_replace)
            yield staging
            _sync(staging)
            _set_mode(handle, mode)
            if destination.exists():
                destination.rename(replaced)
            staging.rename(destination)
        except BaseException as error:
            with contextlib.suppress(OSError):
                _empty(handle)
                staging.rmdir()
            if isinstance(error, OSError):
                raise RunError(f"cannot write {destination}: {error.strerror or error}") from error
            raise
        _sync_entry(destination.parent)
        with contextlib.suppress(OSError, UserError):
            _remove_folder(replaced, is_own)


def _check_replaceable(folder: Path, may_replace: Callable[[Path], bool]) -> None:
    """UserError where a folder exists that cannot be replaced, or not be removed afterwards."""
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not may_replace(folder)):
        raise UserError(f"{folder} exists and is something else: choose another destination, or remove it")
    if doubt := _doubt(folder.stat(), stat.S_IFDIR, folder.parent):
        raise UserError(f"{folder} cannot be replaced ({doubt}): choose another destination")


def _real(path: Path) -> Path:
    """Where links lead; Path.resolve raises what is no OSError where they lead in a circle."""
    return Path(os.path.realpath(path))


def _followed(destination: Path) -> Path:
    """Where a destination leads. UserError for another user's symlink in a shared folder such as /tmp, by the rule of
    Linux's fs.protected_symlinks, which protects only those who open the link itself."""
    if destination.is_symlink():
        link, folder = destination.lstat(), destination.parent.stat()
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and link.st_uid not in (os.geteuid(), folder.st_uid):
            raise UserError(f"{destination} is a symlink of another user: choose another destination")
    return _real(destination)


def _file(path: Path) -> Path:
    """The same for a file to write, but for what is no ordinary one: /dev/stdout leads to a pipe, which has no name."""
    return path if path.exists() and not path.is_file() else _followed(path)


def check_regular(path: Path) -> None:
    """UserError unless a file can be made or appended to at `path`, in a folder of nmtkit's own files: neither a
    symlink, which would lead out of the folder, nor a pipe, which would wait for a reader."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise UserError(f"{path} is in the way (it is not a file): remove it, or choose another folder")


def check_writable(destination: Path, sources: Iterable[Path] = ()) -> None:
    """Raise UserError where `staged_file` could not make this file, or it is one of those that it is to be made of: to
    know it before the work, and not after."""
    destination = _file(destination)
    direct = _is_direct(destination)
    if direct and not destination.is_dir():
        return  # to open a pipe would be to use it
    for source in sources:
        if _real(source) == destination:
            raise UserError(f"{source} is read, and what is made of it would take its place: choose another output")
    _open(destination, direct).close()
    if not direct:
        _staging(destination).unlink()


@contextlib.contextmanager
def staged_file(destination: Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `destination` at the end, and vanishes if an error ends the block.

    What is no ordinary file (a pipe, /dev/null) is written directly. Raises UserError when the destination cannot be
    made, RunError when writing fails.
    """
    destination = _file(destination)
    staging, direct = _staging(destination), _is_direct(destination)
    file = _open(destination, direct)
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


def link_file(source: Path, destination: Path) -> None:
    """Give a file a second name in its folder, in one step, also where another file has that name.

    Copies it on a file system without hard links. Raises UserError when something else stands at the name beside it,
    RunError when the name cannot be given.
    """
    staging = _staging(destination)
    try:
        _remove_file(staging)
        try:
            os.link(source, staging)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with staged_file(destination) as file, source.open("rb") as content:
                shutil.copyfileobj(content, file)
            return
        try:
            staging.replace(destination)
        finally:
            staging.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    except OSError as error:
        raise RunError(f"cannot write {destination}: {error.strerror or error}") from error


def clear_files(folder: Path, is_own: OwnName) -> None:
    """Remove the files that killed processes of this user were writing, if `is_own` accepts their final names."""
    for path in folder.glob(".*.partial"):
        name = _STAGED_FILE.fullmatch(path.name)
        if name and is_own(name[1]) and _doubt(path.lstat(), stat.S_IFREG, folder) is None:
            path.unlink(missing_ok=True)


def _is_direct(destination: Path) -> bool:
    """Whether a destination is no ordinary file, and so written without a file beside it."""
    return destination.exists() and not destination.is_file()


def _staging(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.{os.getpid()}.partial")


def _open(destination: Path, direct: bool) -> BinaryIO:
    """The file that `staged_file` writes to, new and empty; UserError where there can be none."""
    try:
        if direct:
            return destination.open("wb")
        staging = _staging(destination)
        _remove_file(staging)  # of a dead process with the same id
        return staging.open("xb")
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror}") from error


@contextlib.contextmanager
def resumable_file(destination: Path, resume: bool) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `destination` at the end; if an error ends the block, it stays beside it, with
    .partial behind its name.

    To `resume` is to get what is left of it, open at its beginning; otherwise it is begun anew. An empty one is not
    left. What is no ordinary file is written directly. Raises UserError when the destination cannot be made or gone on
    with, or is being written by another process, or when something else stands beside it; RunError when writing fails.
    """
    destination = _file(destination)
    if _is_direct(destination):
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
        with contextlib.suppress(FileNotFoundError):
            if not partial.lstat().st_size:
                partial.unlink()


def _open_alone(path: Path, destination: Path) -> BinaryIO:
    """Open a file to read and write, made if need be, and keep other processes out of it."""
    try:
        try:
            file: BinaryIO = path.open("x+b")
        except FileExistsError:
            file = _reopen(path)
    except OSError as error:
        raise UserError(f"cannot write {destination}: {error.strerror}") from error
    try:
        _lock(file.fileno(), path, destination)
    except BaseException:
        file.close()
        raise
    return file


def _reopen(path: Path) -> BinaryIO:
    """Open a file that a process of this user left. One with a second name is refused: it is somebody's result."""
    found = path.lstat()
    doubt = _doubt(found, stat.S_IFREG, path.parent) or ("it has another name as well" if found.st_nlink > 1 else None)
    if doubt:
        raise _in_the_way(path, doubt)
    return open(path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))


@contextlib.contextmanager
def _locked(staging: Path, destination: Path, is_own: OwnName) -> Iterator[tuple[int, int]]:
    """Make the staging folder, empty and for this user alone, and keep other processes out of it.

    Gives its descriptor and the mode that it gets back at the end.
    """
    with contextlib.ExitStack() as stack:
        try:
            if (left := _open_folder(staging)) is not None:
                stack.callback(os.close, left)
                _lock(left, staging, destination)
                _check_names(left, staging, is_own)
                _empty(left)
                staging.rmdir()
            handle = _make_folder(staging, destination)
            stack.callback(os.close, handle)
            _lock(handle, staging, destination)
            mode = os.fstat(handle).st_mode
            _set_mode(handle, mode & ~_OTHERS)
            _check_names(handle, staging, lambda name: False)  # from here on nobody else can add any
        except OSError as error:
            raise UserError(f"cannot write {destination}: {error.strerror}") from error
        yield handle, mode


def _make_folder(staging: Path, destination: Path) -> int:
    try:
        staging.mkdir(parents=True)
    except FileExistsError as error:
        raise _is_being_written(destination) from error
    handle = _open_folder(staging)
    if handle is None:
        raise _is_being_written(destination)
    return handle


def _lock(handle: int, path: Path, destination: Path) -> None:
    """Lock a file or folder that was opened at `path`; UserError where another process has it, or has removed it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), path.lstat()):
            raise _is_being_written(destination)
    except (BlockingIOError, FileNotFoundError) as error:
        raise _is_being_written(destination) from error


def _is_being_written(destination: Path) -> UserError:
    return UserError(f"{destination} is being written by another process")


def _set_mode(handle: int, mode: int) -> None:
    with contextlib.suppress(PermissionError):  # a file system that has no modes, where all belongs to one user
        os.fchmod(handle, stat.S_IMODE(mode))


# What nmtkit can have left


def _in_the_way(path: Path, doubt: str) -> UserError:
    return UserError(f"{path} is in the way ({doubt}): remove it, or choose another destination")


def _doubt(found: os.stat_result, kind: int, folder: Path) -> str | None:
    """Why nmtkit cannot have left this in a folder, as a file or folder (`kind`) of this user; None if it can."""
    if stat.S_IFMT(found.st_mode) != kind:
        return f"it is not a {'folder' if kind == stat.S_IFDIR else 'file'}"
    return None if found.st_uid == _user(folder) else "it belongs to another user"


def _user(folder: Path) -> int:
    """The owner that the file system gives to what this process creates in a folder: with NFS it may be `nobody`."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_uid


def _remove_file(path: Path) -> None:
    """Remove a file that a process of this user left, if there is one; UserError where it is something else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if doubt := _doubt(found, stat.S_IFREG, path.parent):
        raise _in_the_way(path, doubt)
    path.unlink(missing_ok=True)


def _open_folder(path: Path) -> int | None:
    """The descriptor of a folder of this user, None where nothing is there; UserError where it is something else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if doubt := _doubt(found, stat.S_IFDIR, path.parent):
        raise _in_the_way(path, doubt)
    return os.open(path, _OPEN_FOLDER)


def _check_names(handle: int, path: Path, is_own: OwnName) -> None:
    """UserError where a folder, open at `path`, holds something else than files whose names `is_own` accepts."""
    with os.scandir(handle) as entries:
        for entry in entries:
            if not (is_own(entry.name) and entry.is_file(follow_symlinks=False)):
                raise _in_the_way(path, f"it holds {entry.name}, which nmtkit does not write there")


def _is_left(path: Path, is_own: OwnName) -> bool:
    """Whether a process of this user left a folder there; UserError where it is something else."""
    handle = _open_folder(path)
    if handle is None:
        return False
    try:
        _check_names(handle, path, is_own)
    finally:
        os.close(handle)
    return True


def _remove_folder(path: Path, is_own: OwnName) -> None:
    """Remove a folder that a process of this user left, if there is one; UserError where it is something else."""
    handle = _open_folder(path)
    if handle is None:
        return
    try:
        _check_names(handle, path, is_own)
        _empty(handle)
    finally:
        os.close(handle)
    path.rmdir()


def _empty(handle: int) -> None:
    """Remove the files of an open folder, whatever its path has become meanwhile."""
    for name in os.listdir(handle):
        os.unlink(name, dir_fd=handle)


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
