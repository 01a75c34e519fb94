"""nmtkit: neural machine translation with the Transformer of "Attention Is All You Need"."""

from typing import TYPE_CHECKING, Any

from nmtkit.version import __version__

__all__ = ["Translator", "__version__"]

if TYPE_CHECKING:
    from nmtkit.decoding.translator import Translator


def __getattr__(name: str) -> Any:
    """Hand on `Translator` when it is asked for, so that `import nmtkit` does not import torch."""
    if name == "Translator":
        from nmtkit.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module 'nmtkit' has no attribute {name!r}")
