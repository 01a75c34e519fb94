"""Token files: sentences as ids on disk, with an index of offsets. Both files are memory-mapped for reading.

`docs/reference/dataset.md` describes every byte. A sentence is stored with its EOS, so all lengths count it. PAD, BOS
and EOS never occur inside a sentence: writer and reader check this.
"""

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.storage.files import map_file
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK

MAGIC = b"NMTKINDX"
VERSION = 1
HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes per token, sentences, tokens
OFFSET = np.dtype("<u8")

Indices = NDArray[np.int64]
Tokens = NDArray[np.unsignedinteger[Any]]

REMEDY = "run nmt-preprocess again"
_REMEDIES = {errno.ENOENT: REMEDY, errno.EMFILE: "raise the hard limit of open files, or use larger shards"}


def token_type(vocabulary_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Choose the smallest dtype for all ids of a vocabulary."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def token_path(stem: Path) -> Path:
    return stem.with_name(stem.name + ".bin")


def index_path(stem: Path) -> Path:
    return stem.with_name(stem.name + ".idx")


def find_invalid_sentence(tokens: Tokens, lengths: NDArray[np.int32], vocabulary_size: int) -> tuple[int, str] | None:
    """Return the number, from 0, of the first invalid sentence, and the reason; None if all are valid.

    `tokens` (T,) are the concatenated sentences, `lengths` (n,) their lengths, at least 1. In a valid sentence, all ids
    are below the vocabulary size, the last id is EOS, and PAD, BOS and EOS do not occur elsewhere.
    """
    ends = np.cumsum(lengths) - 1
    out_of_range = tokens >= vocabulary_size
    has_eos = tokens[ends] == EOS
    special = (tokens < len(SPECIALS)) & (tokens != UNK)
    if not out_of_range.any() and has_eos.all() and np.count_nonzero(special) == len(lengths):
        return None
    special[ends] = ~has_eos
    position = int(np.argmax(out_of_range | special))
    sentence, token = int(np.searchsorted(ends, position)), int(tokens[position])
    if token >= vocabulary_size:
        return sentence, f"has the id {token}, the vocabulary has {vocabulary_size} entries"
    if position == ends[sentence]:
        return sentence, f"does not end with {SPECIALS[EOS]}"
    return sentence, f"has {SPECIALS[token]} inside"


class TokenFileWriter:
    """Writes `stem.bin` and `stem.idx` incrementally, in constant memory."""

    def __init__(self, stem: Path, vocabulary_size: int) -> None:
        self.sentences = 0
        self.tokens = 0
        self._vocabulary_size, self._dtype = vocabulary_size, token_type(vocabulary_size)
        self._token_file = token_path(stem).open("wb")
        self._index_file = index_path(stem).open("wb")
        self._write_header()
        self._index_file.write(bytes(OFFSET.itemsize))  # the first sentence begins at 0

    def __enter__(self) -> "TokenFileWriter":
        return self

    def write(self, tokens: Tokens, lengths: NDArray[np.int32]) -> None:
        """Append sentences: concatenated tokens (T,) and lengths (n,). Raises ValueError if one is invalid."""
        if found := find_invalid_sentence(tokens, lengths, self._vocabulary_size):
            raise ValueError(f"sentence {self.sentences + found[0]} {found[1]}")
        ends = np.cumsum(lengths, dtype=OFFSET) + OFFSET.type(self.tokens)
        self._token_file.write(np.ascontiguousarray(tokens, self._dtype).data)
        self._index_file.write(ends.astype(OFFSET, copy=False).data)
        self.sentences += len(lengths)
        self.tokens += len(tokens)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._token_file, self._index_file:
            if kind is None:
                self._index_file.seek(0)
                self._write_header()

    def _write_header(self) -> None:
        header = HEADER.pack(MAGIC, VERSION, self._dtype.itemsize, self.sentences, self.tokens)
        self._index_file.write(header)


class TokenFile:
    """Reads the sentences of one side of a split, including EOS.

    The files are memory-mapped, so all processes share their pages, and files that replace them later are not read.
    Raises UserError for a missing or damaged file. Reading raises it for damaged offsets and invalid sentences.
    """

    def __init__(self, stem: Path, vocabulary_size: int) -> None:
        self.stem, self._vocabulary_size = stem, vocabulary_size
        index, tokens, dtype = _map(index_path(stem)), _map(token_path(stem)), token_type(vocabulary_size)
        header = index[: HEADER.size].ljust(HEADER.size)
        magic, version, token_bytes, sentences, count = HEADER.unpack(header)
        self._sentences, self.tokens = int(sentences), int(count)
        sizes = HEADER.size + (self._sentences + 1) * OFFSET.itemsize, self.tokens * dtype.itemsize
        if (magic, version, token_bytes) != (MAGIC, VERSION, dtype.itemsize) or (len(index), len(tokens)) != sizes:
            raise UserError(f"{index_path(stem)} is damaged, or of a different version; {REMEDY}")
        self._offsets = np.frombuffer(index, np.dtype("<i8"), offset=HEADER.size)  # signed, for differences
        if isinstance(tokens, mmap.mmap):
            tokens.madvise(mmap.MADV_RANDOM)  # otherwise each random access reads a megabyte ahead
        self._tokens = np.frombuffer(tokens, dtype)

    def __len__(self) -> int:
        return self._sentences

    def lengths(self, sentences: Indices | slice) -> NDArray[np.int32]:
        """Look up the lengths (n,) of sentences, in tokens with EOS, by a slice or an array of numbers (n,). Raises
        UserError for damaged offsets, which make a sentence empty or place it outside the file."""
        if isinstance(sentences, slice):
            first, last, _ = sentences.indices(len(self))
            offsets = self._offsets[first : last + 1]
            begin, end = offsets[:-1], offsets[1:]
        else:
            begin, end = self._offsets[sentences], self._offsets[sentences + 1]
        if not ((begin >= 0) & (begin < end) & (end <= self.tokens)).all():
            raise UserError(f"{index_path(self.stem)}: the offsets are damaged; {REMEDY}")
        return (end - begin).astype(np.int32)

    def gather(self, sentences: Indices) -> tuple[Tokens, NDArray[np.int32]]:
        """Read several sentences (n,), and return their concatenated tokens (T,) and lengths (n,)."""
        lengths = self.lengths(sentences)
        shifts = self._offsets[sentences] - (np.cumsum(lengths) - lengths)  # from result to file offsets
        tokens = self._tokens[np.arange(lengths.sum()) + np.repeat(shifts, lengths)]
        if found := find_invalid_sentence(tokens, lengths, self._vocabulary_size):
            raise UserError(f"{token_path(self.stem)}: sentence {sentences[found[0]]} {found[1]}; {REMEDY}")
        return tokens, lengths


def _map(path: Path) -> mmap.mmap | bytes:
    """Map a file into memory. For an empty file, which cannot be mapped, return empty bytes."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return map_file(file)
    except OSError as error:
        remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
        raise UserError(f"cannot read {path}: {error.strerror}{remedy}") from error
