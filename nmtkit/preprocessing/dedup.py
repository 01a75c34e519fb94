"""Finding repeated sentence pairs in bounded memory: hashes on disk, looked through part by part."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HASH = np.dtype("<u8")
HASHES, REPEATS = "hashes", "hashes.repeats"  #: its files in the folder of a dataset, gone when the dataset is finished
PART = 1 << 20  # hashes looked at, and remembered, at a time: some tens of megabytes


def hash_pairs(sources: Sequence[bytes], targets: Sequence[bytes]) -> bytes:
    """64 bits of BLAKE2 a pair. Of 10 million different pairs, two share them once in 400,000 runs."""
    return b"".join(
        hashlib.blake2b(source + b"\n" + target, digest_size=HASH.itemsize).digest()
        for source, target in zip(sources, targets, strict=True)
    )


def mark_repeats(hashes: Path) -> NDArray[np.bool_]:
    """Of each pair, whether one with the same hash stands before it. The file of hashes is used up.

    The answer lies in a file without a name, and memory is bounded by `PART`: the hashes fall into so many parts,
    by their leading bits, that the different ones of a part can be remembered, and are read once for each part.
    """
    values = np.memmap(hashes, HASH, "r")
    marks = _empty_marks(hashes.with_name(REPEATS), len(values))
    hashes.unlink()
    bits = max(0, (len(values) - 1).bit_length() - (PART - 1).bit_length())
    for part in range(1 << bits):
        seen: NDArray[np.uint64] = np.empty(0, HASH)
        for start in range(0, len(values), PART):
            chunk = np.asarray(values[start : start + PART])
            places = np.flatnonzero((chunk >> np.uint64(64 - bits)) == part) if bits else np.arange(len(chunk))
            fresh, first = np.unique(chunk[places], return_index=True)
            is_new = np.isin(fresh, seen, assume_unique=True, invert=True)
            marks[start + places] = True
            marks[start + places[first[is_new]]] = False
            seen = np.union1d(seen, fresh)
    return marks


def _empty_marks(path: Path, count: int) -> NDArray[np.bool_]:
    with path.open("wb") as file:  # written out, so that a full disk is an error here and not a crash later
        for start in range(0, count, PART):
            file.write(bytes(min(PART, count - start)))
    marks = np.memmap(path, np.bool_, "r+")
    path.unlink()
    return marks
