"""Runs a command while it holds locks on files and folders; refuses if one of them is in use.

    python locked.py --record work/average.command "nmt-average …" 4711
    python locked.py --made-by work/average.command "nmt-average …" -- nmt-average …
    python locked.py --read work/averaged.pt work/scores.txt -- nmt-generate …
    python locked.py --read work/text/train.en --if-needed work/data-bin/dataset.json -- nmt-preprocess …
    python locked.py --in-turn work/data-bin.lock --if-needed work/data-bin/dataset.json -- nmt-preprocess …
    python locked.py work/checkpoints -- mv work/checkpoints old

A `.command` file contains the command of a step. The step runs under a shared lock on it, so several machines can run
it. Another command replaces it only under an exclusive lock, so a changed command is newer than all earlier results,
and make repeats the step. The make that records a command (here process 4711) uses it until it ends, also between its
steps: a make on the same machine that would replace the command is refused until then. So a report shows no results of
another make. `FILE.command.users` lists these processes. A step also shares a lock on the files that it reads, and
locks the file that it replaces exclusively. So no file is replaced while a step reads it, and no result is newer than
an input that it was not made from. With --if-needed nothing runs if another make has made that file since this one
decided to: a second time would make it newer than results that are made from it. With --in-turn a second make waits for
the first one, as makes that begin together need the same file. `nmt-train` locks its save folder.
"""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

ENDED = "-"
PROC = Path("/proc")  # not on macOS


def main(arguments: list[str]) -> None:
    """Record the command of a step, or become the command after `--`, which holds the locks until it ends."""
    if arguments[0] == "--record":
        path, text, make, *in_use = arguments[1:]
        record(Path(path), content(text), make, in_use)
        return
    separator = arguments.index("--")
    paths, command = arguments[:separator], arguments[separator + 1 :]
    sources = []
    while paths[:1] == ["--made-by"]:
        check(Path(paths[1]), content(paths[2]))
        sources.append(Path(paths[1]))
        paths = paths[3:]
    while paths[:1] == ["--read"]:
        lock(Path(paths[1]), fcntl.LOCK_SH)
        sources.append(Path(paths[1]))
        paths = paths[2:]
    if paths[:1] == ["--in-turn"]:
        Path(paths[1]).touch()
        lock(Path(paths[1]), fcntl.LOCK_EX, wait=True)
        paths = paths[2:]
    if_needed = paths[:1] == ["--if-needed"]
    paths = paths[if_needed:]
    for path in paths:
        lock(Path(path), fcntl.LOCK_EX)
    if not (if_needed and is_current(map(Path, paths), sources)):
        become(command)


def content(text: str) -> bytes:
    """The content of a `.command` file."""
    return os.fsencode(f"{text}\n")


def record(path: Path, command: bytes, make: str, in_use: list[str]) -> None:
    """Write the command of a step to its file for a make, unless the step runs or a path of `in_use` is locked.

    It is refused, too, while another make uses the command that the file has. The file is rewritten in place, since a
    lock belongs to an inode. A write that was interrupted matches no command. A file that contains the command may be
    locked by a step: another make may have begun the same step.
    """
    users, user = Path(f"{path}.users"), f"{os.uname().nodename} {make} {started(make)}\n"
    if path.exists() and (path.read_bytes() == command or differs_in_folder(path, command)):
        lock(path, fcntl.LOCK_SH, wait=True)  # until another make has read the list, or has written its own command
        if differs_in_folder(path, command):
            dates = path.stat()
            path.write_bytes(command)
            os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))  # the step is not repeated
        check(path, command)
        if user not in users_of(users):
            with contextlib.suppress(OSError), users.open("a") as file:  # finished results may be read-only
                file.write(user)
        return
    for other in in_use:
        lock(Path(other), fcntl.LOCK_EX)
    path.open("ab").close()  # created, if it is missing
    lock(path, fcntl.LOCK_EX)
    for other in users_of(users) - {user}:
        host, process, start, *_ = [*other.split(), "", ""]  # a write may have been interrupted
        if host == os.uname().nodename and started(process) == start != ENDED:
            sys.exit(f"another make (process {process}) uses {path} with other variables: wait for it, or stop it")
    users.write_text(user)
    path.write_bytes(command)


def differs_in_folder(path: Path, command: bytes) -> bool:
    """Whether a file has the same command as nmtkit 0.1 recorded it: with the name of the folder that is WORK now."""
    first, *others = map(re.escape, command.split(b" WORK/"))
    pattern = first + rb" (?!WORK/)(\S+)/" + rb" \1/".join(others)
    return bool(others) and re.fullmatch(pattern, path.read_bytes()) is not None


def users_of(path: Path) -> set[str]:
    """The lines of a list of makes, each with its machine, process number and start."""
    return set(path.read_text(errors="replace").splitlines(keepends=True)) if path.exists() else set()


def started(process: str) -> str:
    """When a process of this machine was started; `ENDED` if it has ended."""
    if PROC.exists():
        try:
            state, *fields = (PROC / process / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ENDED
        return ENDED if state == "Z" else fields[18]
    ps = subprocess.run(["ps", "-o", "lstart=", "-p", process], stdout=subprocess.PIPE, text=True, check=False)
    return "_".join(ps.stdout.split()) or ENDED


def check(path: Path, command: bytes) -> None:
    """Lock the file of a step, which must contain the command of this step."""
    lock(path, fcntl.LOCK_SH)
    if not path.exists() or path.read_bytes() != command:
        sys.exit(f"{path}: another make has begun this step with other variables: call make again")


def is_current(results: Iterable[Path], sources: Iterable[Path]) -> bool:
    """Whether all results are there, and none is older than a source, as make compares them."""
    try:
        return min(path.stat().st_mtime_ns for path in results) >= max(path.stat().st_mtime_ns for path in sources)
    except FileNotFoundError:
        return False


def lock(path: Path, mode: int, wait: bool = False) -> None:
    """Lock a file or folder for this process and the command that it becomes; skip a missing one.

    If another process has locked it, wait for that or refuse.
    """
    # NFS has exclusive locks only for files that are open for writing
    writable = mode == fcntl.LOCK_EX and not path.is_dir()
    try:
        handle = os.open(path, os.O_RDWR if writable and os.access(path, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:
        return
    os.set_inheritable(handle, True)
    try:
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                use = f"a training runs in {path}" if path.is_dir() else f"a step that needs {path} runs"
                sys.exit(f"{use}: wait for it, or stop it")
            if mode == fcntl.LOCK_EX:  # until a step has ended
                print(f"{path} is in use by another make: waiting for it", file=sys.stderr)
            fcntl.flock(handle, mode)
    except OSError:  # a file system without locks, on which the commands take none either
        pass


def become(command: list[str]) -> NoReturn:
    """Replace this process by a command; exit as a shell does if that fails."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        print(f"{command[0]}: {'command not found' if missing else error.strerror}", file=sys.stderr)
        sys.exit(127 if missing else 126)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error.filename or sys.argv[2]}: {error.strerror}")  # a failed write of --record has no file name
