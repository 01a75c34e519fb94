"""The second pass: encodes text as ids, and drops unsuitable training pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Tokens
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.copy_training import with_placeholders
from nmtkit.preprocessing.encoded import EXAMPLES, EncodedBlock, EncodedSide, Example
from nmtkit.preprocessing.filters import has_blank_side
from nmtkit.preprocessing.line_encoder import Lengths, LineEncoder
from nmtkit.preprocessing.reasons import EMPTY, KEPT, RATIO, TOO_LONG, Marks
from nmtkit.preprocessing.scan import Corpus
from nmtkit.text.reading import Block, read_parallel
from nmtkit.text.tags import tag_ids
from nmtkit.text.vocabulary import UNK

EXAMPLE_CHARACTERS = 300  #: most characters on each side of an example


class EncodingTask(NamedTuple):
    """A block of text to encode, with a mark for each pair."""

    corpus: int  #: number of the corpus
    source: Block
    target: Block
    marks: bytes


@dataclass(frozen=True)
class Encoder:
    """Encodes a block of text in a worker. Without `cleaning`, every pair is kept. `tags` precede every source and
    target line; cleaning ignores them."""

    source: LineEncoder
    target: LineEncoder
    cleaning: CleaningConfig | None
    tags: tuple[str, str] = ("", "")
    placeholder_seed: int | None = None  #: of copy training; None: none

    def __call__(self, task: EncodingTask) -> EncodedBlock:
        lines = task.source.lines(), task.target.lines()
        marks: Marks = np.frombuffer(task.marks, np.uint8).copy()
        if self.cleaning is not None:
            marks[list(map(has_blank_side, *lines))] = EMPTY
        encoded = marks == KEPT
        texts = [_select_lines(task.source, encoded), _select_lines(task.target, encoded)]
        if self.placeholder_seed is not None and any(texts):
            texts = with_placeholders(texts, self.placeholder_seed)
        source, target = self.source(texts[0]), self.target(texts[1])
        if self.cleaning is not None:
            marks[encoded] = _mark_lengths(source[1] - 1, target[1] - 1, self.cleaning)
        kept = marks[encoded] == KEPT
        sides = (
            _kept_side(*source, kept, tag_ids(self.tags[0], self.source.tokenizer)),
            _kept_side(*target, kept, tag_ids(self.tags[1], self.target.tokenizer)),
        )
        return EncodedBlock(task.corpus, marks, sides, _examples(*lines, marks))


def _select_lines(block: Block, selected: NDArray[np.bool_]) -> bytes:
    if selected.all():
        return block.content
    return b"".join(line + b"\n" for line in compress(block.raw_lines(), selected))


def _mark_lengths(sources: Lengths, targets: Lengths, cleaning: CleaningConfig) -> Marks:
    """Mark pairs by their numbers of tokens without EOS (pairs,), with the first reason that applies."""
    shorter, longer = np.minimum(sources, targets), np.maximum(sources, targets)
    marks: Marks = np.full(len(shorter), KEPT, np.uint8)
    if cleaning.max_ratio is not None:
        marks[longer > cleaning.max_ratio * shorter] = RATIO
    marks[longer > cleaning.max_length] = TOO_LONG
    marks[shorter == 0] = EMPTY
    return marks


def _examples(sources: list[str], targets: list[str], marks: Marks) -> list[Example]:
    dropped = np.flatnonzero(marks)
    first = (place for mark in np.unique(marks[dropped]) for place in dropped[marks[dropped] == mark][:EXAMPLES])
    return [
        Example(int(marks[place]), sources[place][:EXAMPLE_CHARACTERS], targets[place][:EXAMPLE_CHARACTERS])
        for place in first
    ]


def _kept_side(tokens: Tokens, lengths: Lengths, kept: NDArray[np.bool_], tag: Sequence[int]) -> EncodedSide:
    """Select the kept sentences, and insert the ids of a tag, if any, before each."""
    if not kept.all():
        tokens, lengths = tokens[np.repeat(kept, lengths)], lengths[kept]
    if tag:
        begins = np.cumsum(lengths) - lengths
        tokens = np.insert(tokens, np.repeat(begins, len(tag)), np.tile(tag, len(lengths)))
        lengths = lengths + np.int32(len(tag))
    return EncodedSide(tokens, lengths, int(np.count_nonzero(tokens == UNK)))


def encoding_tasks(corpora: Sequence[Corpus], marks: Marks | None, done: int) -> Iterator[EncodingTask]:
    """Yield the blocks of a text after its first `done` lines, which are whole blocks."""
    begin = 0
    for number, corpus in enumerate(corpora):
        for source, target in read_parallel(corpus.source, corpus.target):
            end = begin + source.count
            if begin >= done:
                given = bytes(source.count) if marks is None else marks[begin:end].tobytes()
                yield EncodingTask(number, source, target, given)
            begin = end
