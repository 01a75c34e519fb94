"""Where the checkout is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = ROOT / "bin"
