"""Finds duplicate sentence pairs in bounded memory, by hashes on disk that are read in partitions."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HASH = np.dtype("<u8")
HASHES_FILE, DUPLICATES_FILE = "hashes", "hashes.repeats"  #: temporary files in the dataset folder
HASHES_PER_CHUNK = 1 << 20  # read at a time, and kept in memory: tens of megabytes


def hash_pairs(sources: Sequence[bytes], targets: Sequence[bytes]) -> bytes:
    """Hash each pair to 64 bits of BLAKE2. Among 10 million pairs, a collision has a chance of 1 in 400,000."""
    return b"".join(
        hashlib.blake2b(source + b"\n" + target, digest_size=HASH.itemsize).digest()
        for source, target in zip(sources, targets, strict=True)
    )


def mark_duplicates(hashes: Path) -> NDArray[np.bool_]:
    """Mark each pair that has the same hash as an earlier one, in a boolean array (pairs,).

    The hashes are partitioned by their leading bits, so that the distinct ones of a partition fit into memory; the file
    is read once per partition, and is removed. The result is memory-mapped from an unlinked file.
    """
    values = np.memmap(hashes, HASH, "r")
    marks = _empty_marks(hashes.with_name(DUPLICATES_FILE), len(values))
    hashes.unlink()
    bits = max(0, (len(values) - 1).bit_length() - (HASHES_PER_CHUNK - 1).bit_length())
    for partition in range(1 << bits):
        seen: NDArray[np.uint64] = np.empty(0, HASH)
        for start in range(0, len(values), HASHES_PER_CHUNK):
            chunk = np.asarray(values[start : start + HASHES_PER_CHUNK])
            positions = np.flatnonzero((chunk >> np.uint64(64 - bits)) == partition) if bits else np.arange(len(chunk))
            distinct, first = np.unique(chunk[positions], return_index=True)
            is_new = np.isin(distinct, seen, assume_unique=True, invert=True)
            marks[start + positions] = True
            marks[start + positions[first[is_new]]] = False
            seen = np.union1d(seen, distinct)
    return marks


def _empty_marks(path: Path, count: int) -> NDArray[np.bool_]:
    with path.open("wb") as file:  # not sparse: a full disk must fail here, not crash at a later write
        for start in range(0, count, HASHES_PER_CHUNK):
            file.write(bytes(min(HASHES_PER_CHUNK, count - start)))
    marks = np.memmap(path, np.bool_, "r+")
    path.unlink()
    return marks
