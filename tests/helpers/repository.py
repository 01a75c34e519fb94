"""Paths of the checkout, and how a shell runs its commands wherever it is."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = ROOT / "bin"
PYTHON = shlex.quote(sys.executable)


def in_shell(command: str) -> str:
    """A command of the checkout, run by the Python of the tests."""
    return f"{PYTHON} {shlex.quote(str(BIN / command))}"
