"""The first pass: is the text sound, how much is there, which words and which repeats are in it."""

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
    """A text in both languages: the user's name for it, and its files."""

    prefix: str
    source: Path
    target: Path


@dataclass(frozen=True)
class Scan:
    """What is known of a split, or of a block of it, after the first pass."""

    pairs: int
    has_text: bool  #: whether there is a pair with text on both sides
    words: tuple[Words, Words]  #: how often each word stands on either side; empty if not asked for
    marked: tuple[int, int]  #: how many lines have marks of subwords on either side
    hashes: bytes = b""


def read_blocks(corpora: Sequence[Corpus]) -> Iterator[tuple[Block, Block]]:
    """All corpora of a split, one after the other."""
    return chain.from_iterable(read_parallel(corpus.source, corpus.target) for corpus in corpora)


def scan(
    name: str, corpora: Sequence[Corpus], pool: WorkerPool, count_words: bool = False, hashes: BinaryIO | None = None
) -> Scan:
    """Read a split through once; count its words if asked to, write the hashes of its pairs if given a file for them.

    Raises UserError when the sides differ in length, a line is not UTF-8, or there is no sentence pair at all.
    """
    work = functools.partial(_scan_block, count_words=count_words, with_hashes=hashes is not None)
    pairs, has_text, words, marked = 0, False, (Words(), Words()), (0, 0)
    with Progress(f"reading {name}", unit="pairs") as progress:
        for block in pool.map(work, read_blocks(corpora)):
            pairs += block.pairs
            has_text |= block.has_text
            marked = marked[0] + block.marked[0], marked[1] + block.marked[1]
            for total, counted in zip(words, block.words, strict=True):
                total.update(counted)
            if hashes is not None:
                hashes.write(block.hashes)
            progress.advance(block.pairs)
    if not has_text:
        files = " ".join(f"{corpus.source} {corpus.target}" for corpus in corpora)
        raise UserError(f"{files}: {'only blank lines' if pairs else 'empty'}; no sentence pair for {name}")
    return Scan(pairs, has_text, words, marked)


def _scan_block(blocks: tuple[Block, Block], count_words: bool, with_hashes: bool) -> Scan:
    source, target = (block.lines() for block in blocks)
    return Scan(
        pairs=len(source),
        has_text=any(one.strip() and other.strip() for one, other in zip(source, target, strict=True)),
        words=(_count(source), _count(target)) if count_words else (Words(), Words()),
        marked=(count_segmented(source), count_segmented(target)),
        hashes=hash_pairs(blocks[0].raw_lines(), blocks[1].raw_lines()) if with_hashes else b"",
    )


def _count(lines: Sequence[str]) -> Words:
    return Words(chain.from_iterable(map(str.split, lines)))
