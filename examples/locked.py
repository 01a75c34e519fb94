"""Runs a command while it holds the locks of nmtkit's commands on files and folders; refuses if one of them is in use.

    python locked.py work/checkpoints -- mv work/checkpoints old

`nmt-train` locks its save folder, and `nmt-generate --resume` the .partial file that it writes.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn


def main(arguments: list[str]) -> NoReturn:
    """Run what follows `--` while the paths before it are locked. A missing path is skipped."""
    separator = arguments.index("--")
    for path in map(Path, arguments[:separator]):
        with contextlib.suppress(FileNotFoundError):
            # NFS locks only files that are open for writing. The handle is held until this process ends.
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                use = f"a training runs in {path}" if path.is_dir() else f"a command writes {path}"
                sys.exit(f"{use}: wait for it, or stop it")
            except OSError:  # a file system without locks, on which the commands take none either
                continue
    sys.exit(subprocess.run(arguments[separator + 1 :], check=False).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
