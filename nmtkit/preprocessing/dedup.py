"""Finds duplicate sentence pairs by hashes on disk, read in partitions, with one byte of memory per pair."""

import functools
import hashlib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.reasons import DUPLICATE, KEPT, Marks
from nmtkit.storage.files import map_numbers
from nmtkit.text.reading import Block

HASH = np.dtype("<u8")
HASHES_FILE = "hashes"  #: temporary file in the dataset folder
HASHES_PER_CHUNK = 1 << 20  # hashes in memory at a time: tens of megabytes


@functools.cache
def _normal_character(character: str) -> str:
    """Normalize a character: 0 for a digit, nothing for most punctuation, controls and spaces."""
    category = unicodedata.category(character)
    return "0" if category == "Nd" else character if category[0] in "LMNS" or character in "#%&*@" else ""


def normal_form(line: str) -> str:
    """Normalize a line: NFKC, lowercase, digits as 0, no punctuation and spaces. Symbols stay, so C# is not C. If
    nothing would remain, only the spaces around the line are removed."""
    folded = unicodedata.normalize("NFKC", line).casefold()
    return "".join(map(_normal_character, folded)) or line.strip()


def hash_text(text: bytes) -> bytes:
    """Hash a text to 64 bits of BLAKE2. The probability of a collision among 10 million texts is 1 in 400,000."""
    return hashlib.blake2b(text, digest_size=HASH.itemsize).digest()


def hash_pairs(source: Block, target: Block, cleaning: CleaningConfig) -> bytes:
    """Hash the sides that --dedup compares for each pair of a block. --dedup-normalized normalizes them first."""
    sides = {"pair": (source, target), "source": (source,), "target": (target,)}[cleaning.dedup]
    columns = [_lines(side, cleaning.dedup_normalized) for side in sides]
    return b"".join(hash_text(b"\n".join(row)) for row in zip(*columns, strict=True))


def _lines(side: Block, normalized: bool) -> Iterator[bytes] | list[bytes]:
    return (normal_form(line).encode() for line in side.lines()) if normalized else side.raw_lines()


def mark_duplicates(hashes: Path, marks: Marks) -> None:
    """Mark each pair with the same hash as an earlier pair in `marks` (pairs,). Pairs that have a mark are ignored.

    The hashes are partitioned by their leading bits, so that the hashes of a partition fit into memory.
    """
    values = map_numbers(hashes, HASH)
    bits = max(0, (len(values) - 1).bit_length() - (HASHES_PER_CHUNK - 1).bit_length())
    for partition in range(1 << bits):
        positions = np.concatenate([np.empty(0, np.int64), *_kept_positions(values, marks, partition, bits)])
        _, first = np.unique(values[positions], return_index=True)
        marks[positions] = DUPLICATE
        marks[positions[first]] = KEPT


def _kept_positions(values: NDArray[np.uint64], marks: Marks, partition: int, bits: int) -> Iterator[NDArray[np.int64]]:
    """Yield the ascending positions (n,) of kept pairs whose hashes have the number of a partition as leading `bits`,
    for each chunk of hashes."""
    for start in range(0, len(values), HASHES_PER_CHUNK):
        chunk = np.asarray(values[start : start + HASHES_PER_CHUNK])
        candidates = marks[start : start + len(chunk)] == KEPT
        if bits:
            candidates &= (chunk >> np.uint64(64 - bits)) == partition
        yield start + np.flatnonzero(candidates)
