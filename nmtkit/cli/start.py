"""Starts the commands. This module imports almost nothing, so that Ctrl-C ends a command quietly from the beginning."""

import signal
import sys
from functools import partial
from importlib import import_module
from typing import NoReturn

COMMANDS = ("preprocess", "train", "average", "generate", "score", "serve", "export")


def start(name: str) -> NoReturn:
    """Run the command nmt-`name` with the arguments of this process, and exit."""
    try:
        import_module(f"nmtkit.cli.{name}").main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except ImportError as error:  # raised for a signal that arrives while an extension is loaded
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.exit(128 + signal.SIGINT)
    raise AssertionError("a command exits")


preprocess, train, average, generate, score, serve, export = (partial(start, name) for name in COMMANDS)
