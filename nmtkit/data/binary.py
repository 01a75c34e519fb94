"""Sentences as ids on disk: a flat token file and an index of offsets, both memory-mapped by readers.

`docs/formats.md` describes them byte by byte. A sentence is stored with its EOS, so that lengths count it.
"""

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError

MAGIC = b"NMTKINDX"
VERSION = 1
HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes a token, sentences, tokens
OFFSET = np.dtype("<u8")

Indices = NDArray[np.int64]
Tokens = NDArray[np.unsignedinteger[Any]]
TokenType = np.dtype[np.unsignedinteger[Any]]
TOKEN_TYPES: dict[int, TokenType] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}  # by their bytes

REMEDY = "run nmt-preprocess again"


def token_type(vocabulary_size: int) -> TokenType:
    """The smallest type that holds every id of a vocabulary."""
    return TOKEN_TYPES[2 if vocabulary_size <= 1 << 16 else 4]


def token_path(stem: Path) -> Path:
    return stem.with_name(stem.name + ".bin")


def index_path(stem: Path) -> Path:
    return stem.with_name(stem.name + ".idx")


class TokenFileWriter:
    """Writes `stem.bin` and `stem.idx` as the sentences come; memory does not grow with them."""

    def __init__(self, stem: Path, dtype: TokenType) -> None:
        self.sentences = 0
        self.tokens = 0
        self._dtype = dtype
        self._token_file = token_path(stem).open("wb")
        self._index_file = index_path(stem).open("wb")
        self._write_header()
        self._index_file.write(bytes(OFFSET.itemsize))  # the first sentence begins at 0

    def __enter__(self) -> "TokenFileWriter":
        return self

    def write(self, tokens: Tokens, lengths: NDArray[np.int32]) -> None:
        """Append sentences: their tokens one after the other, and the length of each."""
        ends = np.cumsum(lengths, dtype=OFFSET) + OFFSET.type(self.tokens)
        self._token_file.write(np.ascontiguousarray(tokens, self._dtype).data)
        self._index_file.write(ends.astype(OFFSET, copy=False).data)
        self.sentences += len(lengths)
        self.tokens += len(tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._token_file, self._index_file:
            if kind is None:
                self._index_file.seek(0)
                self._write_header()

    def _write_header(self) -> None:
        header = HEADER.pack(MAGIC, VERSION, self._dtype.itemsize, self.sentences, self.tokens)
        self._index_file.write(header)


class StoredLengths:
    """Tokens of each sentence of a token file, EOS counted, looked up in its index: by a slice, or by numbers.

    Raises UserError where the index is damaged.
    """

    def __init__(self, offsets: Indices, index: Path) -> None:
        self._offsets, self._index = offsets, index

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, sentences: Indices | slice, /) -> NDArray[np.int32]:
        if isinstance(sentences, slice):
            begin, end, _ = sentences.indices(len(self))
            lengths = np.diff(self._offsets[begin : end + 1])
        else:
            lengths = self._offsets[sentences + 1] - self._offsets[sentences]
        if len(lengths) and lengths.min() < 1:
            raise UserError(f"{self._index}: the offsets are damaged; {REMEDY}")
        return lengths.astype(np.int32)


class TokenFile:
    """The sentences of one side of a split: `file[i]` is the array of ids of sentence i, with its EOS.

    Nothing is held in memory but what the system maps of the files, which all processes share. Raises UserError that
    names the file when it is missing, of another kind or version, or of a wrong size.
    """

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        index, tokens = index_path(stem), token_path(stem)
        try:
            with index.open("rb") as file:
                header = file.read(HEADER.size)
            sizes = index.stat().st_size, tokens.stat().st_size
        except OSError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}; {REMEDY}") from error
        sentences, self.tokens, dtype = _read_header(header, index)
        if sizes[0] != HEADER.size + (sentences + 1) * OFFSET.itemsize:
            raise UserError(f"{index}: {sizes[0]} bytes do not fit {sentences} sentences; {REMEDY}")
        if sizes[1] != self.tokens * dtype.itemsize:
            raise UserError(f"{tokens}: {sizes[1]} bytes do not fit {self.tokens} tokens; {REMEDY}")
        self._offsets = np.frombuffer(_map(index), np.dtype("<i8"), offset=HEADER.size)  # signed, for differences
        self._tokens: Tokens = np.empty(0, dtype)
        if self.tokens:
            mapped = _map(tokens)
            mapped.madvise(mmap.MADV_RANDOM)  # else each sentence of a shuffled corpus brings a megabyte along
            self._tokens = np.frombuffer(mapped, dtype)
        if self._offsets[0] != 0 or self._offsets[-1] != self.tokens:
            raise UserError(f"{index}: the offsets are damaged; {REMEDY}")
        self.lengths = StoredLengths(self._offsets, index)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Tokens:
        if not 0 <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        return self._tokens[int(self._offsets[number]) : int(self._offsets[number + 1])]

    def gather(self, sentences: Indices) -> tuple[Tokens, NDArray[np.int32]]:
        """The tokens of several sentences, one after the other, and the length of each."""
        lengths = self.lengths[sentences]
        shifts = self._offsets[sentences] - (np.cumsum(lengths) - lengths)  # from the result to the file
        return self._tokens[np.arange(lengths.sum()) + np.repeat(shifts, lengths)], lengths


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _read_header(header: bytes, path: Path) -> tuple[int, int, TokenType]:
    """(sentences, tokens, type of a token) of an index; `path` is for the error."""
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise UserError(f"{path}: not an nmtkit index; {REMEDY}")
    _, version, token_bytes, sentences, tokens = HEADER.unpack(header)
    if version != VERSION:
        raise UserError(f"{path}: version {version}, this nmtkit reads version {VERSION}; {REMEDY}")
    if token_bytes not in TOKEN_TYPES:
        raise UserError(f"{path}: {token_bytes} bytes a token are unknown; {REMEDY}")
    return sentences, tokens, TOKEN_TYPES[token_bytes]
