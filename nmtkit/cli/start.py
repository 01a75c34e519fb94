"""Starts the commands. This module imports almost nothing, so that Ctrl-C ends a command quietly from the beginning."""

import signal
import sys
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, NoReturn

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
        load_command(name).main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ImportError as error:  # raised for a signal that arrives while an extension is loaded
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.exit(128 + signal.SIGINT)
    raise AssertionError("a command exits")


preprocess, train, average, generate, score, serve, import_, export = (partial(start, name) for name in COMMANDS)
