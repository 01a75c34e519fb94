"""SHA-256 of files: what tells whether one is still as it was written."""

import hashlib
from pathlib import Path

BLOCK_BYTES = 1 << 20


def sha256(path: Path, size: int) -> str:
    """The digest, in hexadecimal, of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, BLOCK_BYTES))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()
