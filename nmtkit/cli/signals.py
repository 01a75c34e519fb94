"""Signals that end a command. They become exceptions, but not while a module is imported.

Imports little, since a signal before `raise_signals` prints a traceback.
"""

import atexit
import signal
import types


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that no handler of failures catches it."""


_IMPORTS = "<frozen importlib._bootstrap>"  # the file of Python's functions that import a module
_WAIT = 0.02  # seconds until the next look whether the import has ended


def raise_signals() -> None:
    """Raise KeyboardInterrupt for SIGINT and `Terminated` for SIGTERM, in the main thread.

    A signal that arrives while a module is imported waits for the end of the import. C code that imports modules, such
    as torch's, drops exceptions, and would leave a module half imported.
    """
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores it for a background job
        signal.signal(signal.SIGINT, _raise)


def raise_waiting() -> None:
    """Raise a signal that waits, if there is one."""
    if isinstance(signal.getsignal(signal.SIGALRM), _Waiting) and signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.raise_signal(signal.SIGALRM)


class _Waiting:
    """Handles the timer that repeats the signal `number`. Any other timer belongs to the calling program."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, _: int, frame: types.FrameType | None) -> None:
        _raise(self.number, frame)


def _raise(number: int, frame: types.FrameType | None) -> None:
    if _is_importing(frame):
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python's end restores what SIGALRM does: it kills
        signal.signal(signal.SIGALRM, _Waiting(number))
        signal.setitimer(signal.ITIMER_REAL, _WAIT)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _is_importing(frame: types.FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None
