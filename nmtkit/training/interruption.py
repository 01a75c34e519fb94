"""Signals, handled between two updates: SIGTERM, SIGINT and SIGHUP stop the run, SIGUSR1 saves it.

SIGHUP arrives when a terminal is closed. If stderr has lost its reader, the run stops as after SIGPIPE.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Collection
from types import FrameType
from typing import Any

_KILLING = (signal.SIGTERM, signal.SIGINT)
_STOPPING = (*_KILLING, signal.SIGHUP)
STOPS = (*_STOPPING, signal.SIGPIPE)


def agreed_stop(noted: Collection[int]) -> int:
    """Return the signal that stops a run whose ranks have received these signals; 0 for none."""
    return next((number for number in STOPS if number in noted), 0)


class Signals:
    """Records signals within its context. `stop` is the number of the last signal that stops the run, or 0."""

    def __init__(self, second_kills: bool, is_main: bool) -> None:
        """With `second_kills`, a second SIGTERM or SIGINT ends the process at once. Under torchrun this must be False,
        because processes get each signal twice, from terminal and torchrun. Only the main process prints a message."""
        self.second_kills, self.is_main = second_kills, is_main
        self.stop = 0
        self.save = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # the only one that can set handlers
            for number in (*_STOPPING, signal.SIGUSR1):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell makes background jobs ignore SIGINT
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def note_broken_pipe(self) -> None:
        """Record that stderr has lost its reader."""
        self.stop = self.stop or signal.SIGPIPE

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save = True
            return
        if self.is_main and not self.stop:
            hint = "; send it again to stop at once" if self.second_kills and number in _KILLING else ""
            begin = "\n" if os.isatty(2) else ""  # below the progress bar
            message = f"{begin}{signal.Signals(number).name}: finishing and saving this update first{hint}\n"
            with contextlib.suppress(OSError):  # stderr is on a full disk or a closed terminal
                os.write(2, message.encode())
        self.stop = number
        if self.second_kills:
            for each in self._before.keys() & set(_KILLING):
                signal.signal(each, self._before[each])
