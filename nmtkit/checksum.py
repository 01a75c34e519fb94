"""SHA-256 of files: what tells whether one is still as it was written."""

import hashlib
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1 << 20


def sha256(path: Path, size: int) -> str:
    """The digest, in hexadecimal, of the first `size` bytes of a file."""
    with path.open("rb") as file:
        return sha256_of_file(file, size)


def sha256_of_file(file: BinaryIO, size: int) -> str:
    """The same of a file that is open."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (block := file.read(min(size, BLOCK_BYTES))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
