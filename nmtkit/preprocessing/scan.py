"""The first pass: validates the text, counts pairs and words, and marks the pairs that a filter drops."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, compress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.console.log import Progress
from nmtkit.errors import UserError
from nmtkit.machine.workers import WorkerPool
from nmtkit.preprocessing.config import REASONS
from nmtkit.preprocessing.dedup import hash_pairs
from nmtkit.preprocessing.filters import PairMarker
from nmtkit.preprocessing.reasons import DUPLICATE, EMPTY, KEPT, Marks, count_marks
from nmtkit.text.reading import Block, read_parallel
from nmtkit.text.tokenizer import count_segmented

Words = Counter[str]


class Corpus(NamedTuple):
    """A parallel text, with its prefix as given and its two files."""

    prefix: str
    source: Path
    target: Path


@dataclass(frozen=True)
class Scan:
    """The result of the first pass over a split."""

    words: tuple[Words, Words]  #: word counts of source and target; empty if not requested
    segmented: tuple[int, int]  #: number of source and target lines with subword markers
    marked: NDArray[np.int64]  #: pairs by mark, as in `count_marks`

    @property
    def pairs(self) -> int:
        return int(self.marked.sum())

    @property
    def usable(self) -> int:
        """The number of pairs to learn a vocabulary from, which no filter drops."""
        return int(self.marked[_USABLE].sum())


class ScannedBlock(NamedTuple):
    """The result of the first pass over a block."""

    has_text: bool  #: whether any pair has text on both sides
    words: tuple[Words, Words]
    segmented: tuple[int, int]
    marks: Marks  #: the mark of each pair
    hashes: bytes  #: the hash of each pair, if requested


@dataclass(frozen=True)
class Scanner:
    """Scans a block of text in a worker. Without a `marker`, pairs get no marks."""

    count_words: bool = False
    marker: PairMarker | None = None

    def __call__(self, blocks: tuple[Block, Block]) -> ScannedBlock:
        source, target = blocks
        marks = np.zeros(source.count, np.uint8)
        hashes = b""
        if self.marker is not None:
            marks[:] = list(map(self.marker, source.lines(), target.lines()))
            if self.marker.config.removes_duplicates:
                hashes = hash_pairs(source, target, self.marker.config)
        words = (Words(), Words())
        if self.count_words:
            usable = is_usable(marks)
            words = _count_words(source.lines(), usable), _count_words(target.lines(), usable)
        segmented = count_segmented(source.text), count_segmented(target.text)  # also checks the encoding
        pairs = zip(BytesIO(source.content), BytesIO(target.content), strict=True)
        has_text = any(a.strip() and b.strip() for a, b in pairs)  # usually the first pair has
        return ScannedBlock(has_text, words, segmented, marks, hashes)


def read_blocks(corpora: Sequence[Corpus]) -> Iterator[tuple[Block, Block]]:
    """Read all corpora of a split, one after the other. Raises UserError for an empty corpus."""
    for corpus in corpora:
        is_empty = True
        for blocks in read_parallel(corpus.source, corpus.target):
            is_empty = False
            yield blocks
        if is_empty:
            raise UserError(f"{corpus.source} and {corpus.target} are empty: omit this corpus")


def scan(
    name: str,
    corpora: Sequence[Corpus],
    pool: WorkerPool,
    scanner: Scanner = Scanner(),  # immutable
    files: tuple[BinaryIO, BinaryIO] | None = None,
) -> Scan:
    """Read a split once, and write the marks and the hashes of its pairs to two `files`. Raises UserError for malformed
    text, and if no pair has text on both sides."""
    has_text, words, segmented = False, (Words(), Words()), (0, 0)
    marked = np.zeros(1 + len(REASONS), np.int64)
    with Progress(f"reading {name}", unit="pairs") as progress:
        for block in pool.map(scanner, read_blocks(corpora)):
            has_text |= block.has_text
            segmented = segmented[0] + block.segmented[0], segmented[1] + block.segmented[1]
            marked += count_marks(block.marks)
            for total, counted in zip(words, block.words, strict=True):
                total.update(counted)
            if files is not None:
                files[0].write(block.marks.tobytes())
                files[1].write(block.hashes)
            progress.advance(len(block.marks))
    if not has_text:
        names = " ".join(f"{corpus.source} {corpus.target}" for corpus in corpora)
        raise UserError(f"{names}: no line has text on both sides; no sentence pair for {name}")
    return Scan(words, segmented, marked)


_USABLE = [KEPT, EMPTY, DUPLICATE]


def is_usable(marks: Marks) -> NDArray[np.bool_]:
    """Return (pairs,), True for pairs from which a vocabulary is learned, including duplicates."""
    return np.isin(marks, _USABLE)


def _count_words(lines: Sequence[str], usable: NDArray[np.bool_]) -> Words:
    return Words(chain.from_iterable(map(str.split, compress(lines, usable))))
