"""Maps files into memory to read them."""

import mmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map a file that is not empty. Privately: with `direct_io`, as of sshfs and s3fs, Linux has no shared maps."""
    return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def map_numbers(path: Path, dtype: Any) -> NDArray[Any]:
    """Map a file of numbers (n,) that is not empty."""
    with path.open("rb") as file:
        return np.frombuffer(map_file(file), dtype)
