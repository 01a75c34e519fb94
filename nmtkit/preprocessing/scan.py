"""The first pass: validates the text, counts its pairs and words, and hashes its pairs."""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from nmtkit.errors import UserError
from nmtkit.log import Progress
from nmtkit.preprocessing.dedup import hash_pairs
from nmtkit.text import Block, read_parallel
from nmtkit.tokenizer import count_segmented
from nmtkit.workers import WorkerPool

Words = Counter[str]


class Corpus(NamedTuple):
    """A parallel text: the prefix that the user gave, and its two files."""

    prefix: str
    source: Path
    target: Path


@dataclass(frozen=True)
class Scan:
    """The result of the first pass, for a split or for a block of it."""

    pairs: int
    has_text: bool  #: whether any pair has text on both sides
    words: tuple[Words, Words]  #: word counts of source and target; empty if not requested
    segmented: tuple[int, int]  #: number of source and target lines with subword markers
    hashes: bytes = b""  #: of each pair of a block, if requested


def read_blocks(corpora: Sequence[Corpus]) -> Iterator[tuple[Block, Block]]:
    """Read all corpora of a split, one after the other."""
    return chain.from_iterable(read_parallel(corpus.source, corpus.target) for corpus in corpora)


def scan(
    name: str, corpora: Sequence[Corpus], pool: WorkerPool, count_words: bool = False, hashes: BinaryIO | None = None
) -> Scan:
    """Read a split once. Optionally count its words, and write the hashes of its pairs to the file `hashes`.

    Raises UserError if the sides have different line counts, a line is not UTF-8, or there is no sentence pair.
    """
    scan_block = functools.partial(_scan_block, count_words=count_words, with_hashes=hashes is not None)
    pairs, has_text, words, segmented = 0, False, (Words(), Words()), (0, 0)
    with Progress(f"reading {name}", unit="pairs") as progress:
        for block in pool.map(scan_block, read_blocks(corpora)):
            pairs += block.pairs
            has_text |= block.has_text
            segmented = segmented[0] + block.segmented[0], segmented[1] + block.segmented[1]
            for total, counted in zip(words, block.words, strict=True):
                total.update(counted)
            if hashes is not None:
                hashes.write(block.hashes)
            progress.advance(block.pairs)
    if not has_text:
        files = " ".join(f"{corpus.source} {corpus.target}" for corpus in corpora)
        raise UserError(f"{files}: {'only blank lines' if pairs else 'empty'}; no sentence pair for {name}")
    return Scan(pairs, has_text, words, segmented)


def _scan_block(blocks: tuple[Block, Block], count_words: bool, with_hashes: bool) -> Scan:
    source, target = (block.lines() for block in blocks)
    return Scan(
        pairs=len(source),
        has_text=any(a.strip() and b.strip() for a, b in zip(source, target, strict=True)),
        words=(_count_words(source), _count_words(target)) if count_words else (Words(), Words()),
        segmented=(count_segmented(source), count_segmented(target)),
        hashes=hash_pairs(blocks[0].raw_lines(), blocks[1].raw_lines()) if with_hashes else b"",
    )


def _count_words(lines: Sequence[str]) -> Words:
    return Words(chain.from_iterable(map(str.split, lines)))
