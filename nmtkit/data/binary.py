"""Sentences as ids on disk: a flat token file and an index of offsets, both memory-mapped by readers.

`docs/formats.md` describes them byte by byte. A sentence is stored with its EOS, so that lengths count it. Nowhere else
does a stored sentence have PAD, BOS or EOS: the writer refuses it, and so does the reader.
"""

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.vocab import EOS, SPECIALS, UNK

MAGIC = b"NMTKINDX"
VERSION = 1
HEADER = struct.Struct("<8sIIQQ")  # magic, version, bytes a token, sentences, tokens
OFFSET = np.dtype("<u8")
LONGEST = np.iinfo(np.int32).max  # tokens of a sentence

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


def flaw(tokens: Tokens, lengths: NDArray[np.int32], vocabulary_size: int) -> tuple[int, str] | None:
    """The first of some sentences that cannot be stored, counted from 0, and why; None where all can.

    `tokens` are those of the sentences one after the other, `lengths` those of each, at least 1. Ids are below the
    vocabulary size, each sentence ends with EOS, and PAD, BOS and EOS stand nowhere else.
    """
    ends = np.cumsum(lengths) - 1
    unknown_ids = tokens >= vocabulary_size
    ends_well = tokens[ends] == EOS
    special = (tokens < len(SPECIALS)) & (tokens != UNK)
    if not unknown_ids.any() and ends_well.all() and np.count_nonzero(special) == len(lengths):
        return None
    special[ends] = ~ends_well
    place = int(np.argmax(unknown_ids | special))
    sentence, token = int(np.searchsorted(ends, place)), int(tokens[place])
    if token >= vocabulary_size:
        return sentence, f"has the id {token}, the vocabulary has {vocabulary_size} entries"
    if place == ends[sentence]:
        return sentence, f"does not end with {SPECIALS[EOS]}"
    return sentence, f"has {SPECIALS[token]} inside"


class TokenFileWriter:
    """Writes `stem.bin` and `stem.idx` as the sentences come; memory does not grow with them."""

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
        """Append sentences: their tokens one after the other, and the length of each.

        Raises ValueError for lengths that do not fit, and for what cannot be a sentence: see `flaw`.
        """
        if (lengths < 1).any() or lengths.sum() != len(tokens):
            raise ValueError(f"the lengths do not fit {len(tokens)} tokens")
        if found := flaw(tokens, lengths, self._vocabulary_size):
            raise ValueError(f"sentence {self.sentences + found[0]} {found[1]}")
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

    Raises UserError where the index is damaged: where a sentence has no token, or does not lie within the file.
    """

    def __init__(self, offsets: Indices, index: Path) -> None:
        self._offsets, self._index = offsets, index
        self._tokens = int(offsets[-1])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, sentences: Indices | slice, /) -> NDArray[np.int32]:
        if isinstance(sentences, slice):
            first, last, _ = sentences.indices(len(self))
            offsets = self._offsets[first : last + 1]
            begin, end = offsets[:-1], offsets[1:]
        else:
            begin, end = self._offsets[sentences], self._offsets[sentences + 1]
        # each offset for itself, as a difference of forged ones may wrap around
        if not ((begin >= 0) & (begin < end) & (end <= self._tokens)).all() or (end - begin > LONGEST).any():
            raise UserError(f"{self._index}: the offsets are damaged; {REMEDY}")
        return (end - begin).astype(np.int32)


class TokenFile:
    """The sentences of one side of a split: `file[i]` is the array of ids of sentence i, with its EOS.

    Nothing is held in memory but what the system maps of the files, which all processes share. Raises UserError that
    names the file when it is missing, of another kind or version, or of a wrong size. Sentences are checked when they
    are read: UserError for damaged offsets, and for what cannot be a sentence of that vocabulary, see `flaw`.
    """

    def __init__(self, stem: Path, vocabulary_size: int) -> None:
        self.stem, self._vocabulary_size = stem, vocabulary_size
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
        lengths = self.lengths[number : number + 1]
        begin = int(self._offsets[number])
        sentence = self._tokens[begin : begin + int(lengths[0])]
        self._check(sentence, lengths, (number,))
        return sentence

    def gather(self, sentences: Indices) -> tuple[Tokens, NDArray[np.int32]]:
        """The tokens of several sentences, one after the other, and the length of each."""
        lengths = self.lengths[sentences]
        shifts = self._offsets[sentences] - (np.cumsum(lengths) - lengths)  # from the result to the file
        tokens = self._tokens[np.arange(lengths.sum()) + np.repeat(shifts, lengths)]
        self._check(tokens, lengths, sentences)
        return tokens, lengths

    def _check(self, tokens: Tokens, lengths: NDArray[np.int32], sentences: Sequence[int] | Indices) -> None:
        if found := flaw(tokens, lengths, self._vocabulary_size):
            raise UserError(f"{token_path(self.stem)}: sentence {sentences[found[0]]} {found[1]}; {REMEDY}")


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
