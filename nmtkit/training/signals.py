"""Signals as wishes, to be granted between two updates: SIGTERM and SIGINT stop the run, SIGUSR1 saves it."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Notes signals while it is entered. `stop` is the number of the one that asked to stop, 0 if none has."""

    def __init__(self, insistent: bool, is_main: bool) -> None:
        """Where `insistent`, a second signal to stop has its usual effect, at once. Not so below torchrun, which passes
        on to its processes what a terminal has sent to them already. The main process says what happens."""
        self.insistent, self.is_main = insistent, is_main
        self.stop = 0
        self.save = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (*_STOPPING, signal.SIGUSR1):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell leaves SIGINT to a background job
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save = True
            return
        if self.is_main and not self.stop:
            hint = "; once more to end at once" if self.insistent else ""
            with contextlib.suppress(OSError):  # a log on a full disk, a terminal that is gone
                os.write(2, f"{signal.Signals(number).name}: the update is finished and saved first{hint}\n".encode())
        self.stop = number
        if self.insistent:
            for each in self._before.keys() & set(_STOPPING):
                signal.signal(each, self._before[each])
