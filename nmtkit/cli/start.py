"""Starts the commands. It imports almost nothing, so that a signal ends a command quietly from the beginning."""

import contextlib
import signal
import sys
import types
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, NoReturn

from nmtkit.cli.load_errors import describe_load_error
from nmtkit.cli.signals import Terminated, raise_signals, raise_waiting, stop_raising

if TYPE_CHECKING:
    import click

COMMANDS = ("preprocess", "train", "average", "generate", "score", "serve", "import", "export")


def module_of(name: str) -> str:
    """The module of the command nmt-`name`: it has that name in nmtkit.cli, with `_` after a keyword of Python."""
    return f"nmtkit.cli.{name}{'_' * iskeyword(name)}"


def load_command(name: str) -> "click.Command":
    """Import the command nmt-`name`."""
    command: click.Command = import_module(module_of(name)).main
    return command


def start(name: str) -> NoReturn:
    """Run the command nmt-`name` with the arguments of this process, and exit."""
    try:
        try:
            raise_signals()
            if name == "train" and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
                signal.signal(signal.SIGUSR1, _ignore)  # there is nothing to save before the training begins
            command = _load_or_exit(name)
            raise_waiting()
            command.main()
        finally:
            stop_raising()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    raise AssertionError("a command exits")


def _load_or_exit(name: str) -> "click.Command":
    """Import a command. Under a limit on memory even this may fail, with one line and exit code 1."""
    try:
        return load_command(name)
    except (ImportError, OSError, MemoryError) as error:
        if "--debug" in sys.argv or sys.stderr is None:
            raise
        with contextlib.suppress(OSError):
            sys.stderr.write(f"nmt-{name}: {describe_load_error(error)}\n")
        sys.exit(1)


def _ignore(number: int, frame: types.FrameType | None) -> None:
    """Ignore a signal until the training handles it.

    Unlike SIG_IGN, this does not make the training ignore it too.
    """


preprocess, train, average, generate, score, serve, import_, export = (partial(start, name) for name in COMMANDS)
