"""Bounds how far the weights of a foreign file may exceed what the file stores."""

from pathlib import Path

from nmtkit.errors import UserError

_MAX_SHARING = 4  # embeddings have up to three names


def refuse_expansion(claimed: int, stored: int, path: Path) -> None:
    """Raise UserError if the weights of the file `path` claim many times the bytes that it stores.

    A few may share their values. If all did, those of a small file would take all memory.
    """
    if claimed > _MAX_SHARING * stored or stored > path.stat().st_size:
        raise UserError(f"its weights claim {claimed} bytes, far more than it stores")
