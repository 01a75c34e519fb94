"""The commands, their modules and entry points."""

import atexit
import gc
import os
import sys
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, NoReturn

from nmtkit.wording import first_line

if TYPE_CHECKING:
    import click

COMMANDS = ("preprocess", "train", "average", "generate", "score", "serve", "import", "export")


def module_of(name: str) -> str:
    """Return the module of the command nmt-`name`: nmtkit.cli.`name`, with `_` after a Python keyword."""
    return f"nmtkit.cli.{name}{'_' * iskeyword(name)}"


def load_command(name: str) -> "click.Command":
    """Import the command nmt-`name`."""
    command: click.Command = import_module(module_of(name)).main
    return command


def start(name: str) -> NoReturn:
    """Run the command nmt-`name` with the arguments of this process, and exit."""
    _let_waiting_threads_sleep()
    gc.set_threshold(100_000)  # starting creates many objects and no garbage
    atexit.register(gc.freeze)  # or exiting searches all objects for garbage
    try:
        command = load_command(name)
    except ImportError as error:
        sys.exit(f"nmt-{name}: cannot load a library: {first_line(error)}")
    command.main()
    raise AssertionError("a command exits")


def _let_waiting_threads_sleep() -> None:
    """Let waiting threads of torch and NumPy sleep soon, unless the environment sets a policy.

    By default they spin, which takes cores from other processes. Without any spinning, small models train slower.
    NumPy's threads spin for 0.1 s when it is imported.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 cycles
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"


preprocess, train, average, generate, score, serve, import_, export = (partial(start, name) for name in COMMANDS)
