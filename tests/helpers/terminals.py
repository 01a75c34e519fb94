"""Runs programs on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from typing import NamedTuple

from patience import PATIENCE

_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_CURSOR = re.compile(r"\x1b\[A|\r")  # of progress bars


class Shown(NamedTuple):
    """What a program has shown: on its terminal, on stdout if that is a pipe, and its exit code."""

    terminal: str
    stdout: bytes
    code: int

    @property
    def text(self) -> str:
        """The terminal's text without styles and movements of the cursor."""
        return _CURSOR.sub("\n", _STYLES.sub("", self.terminal.replace("\r\n", "\n")))

    @property
    def is_styled(self) -> bool:
        """Whether any style reached the terminal."""
        return _STYLES.search(self.terminal) is not None


def on_terminal(
    command: Sequence[object], columns: int = 100, stdout: bool = False, **environment: str | None
) -> Shown:
    """Run a Python program with stderr, and on request stdout, on a terminal of so many columns.

    A variable of the `environment` is removed by None.
    """
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = {"TERM": "xterm-256color", "NO_COLOR": None, "OMP_NUM_THREADS": "1", **environment}
    settings = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    shown = bytearray()

    def read() -> None:
        try:
            while block := os.read(terminal, 65_536):
                shown.extend(block)
        except OSError:  # Linux: the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=its_end if stdout else subprocess.PIPE,
        stderr=its_end,
        env=settings,
        timeout=PATIENCE,
        check=False,
    )
    os.close(its_end)
    reader.join()
    os.close(terminal)
    return Shown(shown.decode(errors="replace"), done.stdout or b"", done.returncode)
