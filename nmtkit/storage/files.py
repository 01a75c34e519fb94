"""Reads files: memory maps, SHA-256 checksums, JSON and TOML."""

import hashlib
import json
import mmap
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from numpy.typing import NDArray

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CHUNK_BYTES = 1 << 20
parse_toml = tomllib.loads


def begins_with(path: Path, start: bytes | tuple[bytes, ...]) -> bool:
    """Whether a file begins with `start`, or with one of several, of at most 32 bytes."""
    with path.open("rb") as file:
        return file.read(32).startswith(start)


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map a non-empty file privately, because Linux has no shared maps with `direct_io`, which sshfs and s3fs use."""
    return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def map_numbers(path: Path, dtype: Any) -> "NDArray[Any]":
    """Map a file of numbers (n,) that is not empty."""
    import numpy as np  # here, because --help reads JSON but no numbers

    with path.open("rb") as file:
        return np.frombuffer(map_file(file), dtype)


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
    """Hash a JSON object without its field `sha256`, as compact JSON with sorted keys."""
    hashed = {name: value for name, value in fields.items() if name != "sha256"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError if it is malformed or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
