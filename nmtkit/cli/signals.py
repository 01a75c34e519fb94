"""Signals that end a command. They become exceptions, but wait for work that an exception would break.

Imports little, since a signal before `raise_signals` prints a traceback.
"""

import atexit
import signal
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that no handler of failures catches it."""


_IMPORTS = "<frozen importlib._bootstrap>"  # the file of Python's functions that import a module
_WAITED_FOR = (  # the modules of those that start a process, or read and write tensors
    "multiprocessing.popen_spawn_posix",
    "torch.serialization",
    "safetensors.torch",
)
_WAIT = 0.02  # seconds until the next look whether that has ended
_raised: list[int] = []  # the signals that have been raised since the command began


def raise_signals() -> None:
    """Raise KeyboardInterrupt for SIGINT and `Terminated` for SIGTERM, in the main thread.

    A signal that arrives while a module is imported waits for the end of the import. C code that imports modules, such
    as torch's, drops exceptions, and would leave a module half imported. While a process is started, it waits as well:
    the process would print that it received nothing. It also waits while torch or safetensors read or write a file:
    their C code would report a damaged file or a failure to write, or abort. A signal whose exception Python drops, as
    in a finalizer, is raised again.
    """
    _raised.clear()
    signal.signal(signal.SIGTERM, _raise)
    if not isinstance(sys.unraisablehook, _RaiseAgain):
        sys.unraisablehook = _RaiseAgain()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores it for a background job
        signal.signal(signal.SIGINT, _raise)


def raised() -> BaseException | None:
    """The exception of the first signal that has been raised. C code may have turned it into another one."""
    return _exception(_raised[0]) if _raised else None


def raise_waiting() -> None:
    """Raise a signal that waits, if there is one."""
    if isinstance(signal.getsignal(signal.SIGALRM), _Waiting) and signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.raise_signal(signal.SIGALRM)


def stop_raising() -> None:
    """Let signals kill the process from here on, as by default, after a signal that waits has been raised.

    The work is done. An exception while Python ends would be dropped, and raised again too late.
    """
    raise_waiting()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _raise:
            signal.signal(number, signal.SIG_DFL)


class _Waiting:
    """Handles the timer that repeats the signal `number`. Any other timer belongs to the calling program."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, _: int, frame: types.FrameType | None) -> None:
        _raise(self.number, frame)


class _RaiseAgain:
    """Handles the exceptions that Python drops: one of a signal waits, and others go to the handler before this one."""

    def __init__(self) -> None:
        self.others = sys.unraisablehook

    def __call__(self, dropped: "UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, Terminated):
            _wait(signal.SIGTERM)
        elif isinstance(dropped.exc_value, KeyboardInterrupt):
            _wait(signal.SIGINT)
        else:
            self.others(dropped)


def _raise(number: int, frame: types.FrameType | None) -> None:
    if _must_wait(frame):
        _wait(number)
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    _raised.append(number)
    raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def _wait(number: int) -> None:
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python's end restores what SIGALRM does: it kills
    signal.signal(signal.SIGALRM, _Waiting(number))
    signal.setitimer(signal.ITIMER_REAL, _WAIT)


def _must_wait(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS or frame.f_globals.get("__name__") in _WAITED_FOR:
            return True
        frame = frame.f_back
    return False
