"""Runs a command while it holds locks on files and folders; refuses if one of them is in use.

    python locked.py work/checkpoints -- mv work/checkpoints old
    python locked.py --shared work/begun -- nmt-generate --output work/part

`nmt-train` locks its save folder. Several commands can hold a shared lock at once.
"""

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import NoReturn


def main(arguments: list[str]) -> NoReturn:
    """Become the command after `--`, which holds locks on the paths before it until it ends.

    A missing path is skipped.
    """
    separator = arguments.index("--")
    paths, command = arguments[:separator], arguments[separator + 1 :]
    mode = fcntl.LOCK_SH if paths[:1] == ["--shared"] else fcntl.LOCK_EX
    for path in map(Path, paths[mode == fcntl.LOCK_SH :]):
        with contextlib.suppress(FileNotFoundError):
            # NFS has exclusive locks only for files that are open for writing.
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            os.set_inheritable(handle, True)
            try:
                fcntl.flock(handle, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                use = f"a training runs in {path}" if path.is_dir() else f"a command that needs {path} runs"
                sys.exit(f"{use}: wait for it, or stop it")
            except OSError:  # a file system without locks, on which the commands take none either
                pass
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
