"""nmtkit: neural machine translation with the Transformer of "Attention Is All You Need"."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nmtkit.version import __version__

if sys.platform == "win32":
    raise ImportError("nmtkit runs on Linux and macOS: on Windows, install it in WSL")

__all__ = ["Request", "Translator", "__version__"]
_MODULES = {"Request": "requests", "Translator": "translator"}  # in nmtkit.decoding

if TYPE_CHECKING:
    from nmtkit.decoding.requests import Request
    from nmtkit.decoding.translator import Translator


def __getattr__(name: str) -> Any:
    """Import `Translator` and `Request` on first access, so that `import nmtkit` does not import torch."""
    if name in _MODULES:
        return getattr(import_module(f"nmtkit.decoding.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'nmtkit' has no attribute {name!r}")
