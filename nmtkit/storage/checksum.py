"""SHA-256 checksums of files and of JSON objects."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 20


def sha256(path: Path, size: int) -> str:
    """Hash the first `size` bytes of a file, and return the digest in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of_file(file, size)


def sha256_of_file(file: BinaryIO, size: int) -> str:
    """Hash the first `size` bytes of an open file, and return the digest in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def sha256_of_fields(fields: Mapping[str, Any]) -> str:
    """Hash a JSON object, apart from its field `sha256`: as compact JSON with sorted keys."""
    hashed = {name: value for name, value in fields.items() if name != "sha256"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
