"""Paths of the checkout, and how a shell names the Python of the tests."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = ROOT / "bin"
PYTHON = shlex.quote(sys.executable)
