"""The second pass: encodes text as ids, and drops unsuitable pairs of the training text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import TokenFileWriter, Tokens
from nmtkit.data.description import SplitSummary, split_stem
from nmtkit.data.lines import LINE_DTYPE, dropped_path
from nmtkit.languages import side_names
from nmtkit.log import Progress
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.line_encoder import Lengths, LineEncoder
from nmtkit.preprocessing.reasons import EMPTY, KEPT, MARKS, RATIO, REASONS, TOO_LONG, Marks, by_reason, count_marks
from nmtkit.preprocessing.scan import Corpus
from nmtkit.source_tags import tag_ids
from nmtkit.text import Block, read_parallel
from nmtkit.vocab import UNK
from nmtkit.workers import WorkerPool

EXAMPLES = 5  #: dropped pairs kept for each reason
EXAMPLE_CHARACTERS = 300  #: of each side of an example


class Example(NamedTuple):
    """A dropped pair; long lines are cut."""

    mark: int
    source: str
    target: str


class Task(NamedTuple):
    """A block of text to encode, with a mark for each pair."""

    corpus: int  #: number of the corpus
    source: Block
    target: Block
    marks: bytes


@dataclass(frozen=True)
class EncodedSide:
    """One side of an encoded block: its concatenated tokens, and the length of each sentence, EOS counted."""

    tokens: Tokens
    lengths: Lengths
    unknown: int  #: number of unknown tokens

    @classmethod
    def of(cls, tokens: Tokens, lengths: Lengths) -> "EncodedSide":
        return cls(tokens, lengths, int(np.count_nonzero(tokens == UNK)))


@dataclass(frozen=True)
class EncodedBlock:
    """The kept sentence pairs of a block of text."""

    corpus: int  #: number of the corpus
    marks: Marks  #: of every pair of the block
    sides: tuple[EncodedSide, EncodedSide]
    examples: list[Example]  #: the first dropped pairs of each reason


@dataclass
class CorpusCounts:
    """What was kept and dropped of a corpus. `tokens` (each EOS counted) and `unknown` are of source and target."""

    prefix: str
    marks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1 + len(REASONS), np.int64))  #: pairs by mark
    tokens: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))
    unknown: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def add(self, block: EncodedBlock) -> None:
        self.marks += count_marks(block.marks)
        self.tokens += [len(side.tokens) for side in block.sides]
        self.unknown += [side.unknown for side in block.sides]

    @property
    def pairs(self) -> int:
        return int(self.marks.sum())

    @property
    def kept(self) -> int:
        return int(self.marks[KEPT])


@dataclass(frozen=True)
class EncodedSplit:
    """The counts of a split by corpus, and the first `EXAMPLES` dropped pairs of each reason."""

    name: str
    corpora: list[CorpusCounts]
    examples: list[Example]

    def summary(self, languages: tuple[str, str]) -> SplitSummary:
        """The entry of the split in dataset.json."""
        marks = np.sum([corpus.marks for corpus in self.corpora], axis=0)
        tokens = np.sum([corpus.tokens for corpus in self.corpora], axis=0)
        unknown = np.sum([corpus.unknown for corpus in self.corpora], axis=0)
        return SplitSummary(
            self.name,
            int(marks[KEPT]),
            dict(zip(side_names(languages), tokens.tolist(), strict=True)),
            dict(zip(side_names(languages), unknown.tolist(), strict=True)),
            by_reason(marks),
            [(corpus.prefix, corpus.pairs) for corpus in self.corpora],
        )


@dataclass(frozen=True)
class Encoder:
    """Encodes a block of text, in a worker. Without `cleaning` every pair is kept.

    `source_tag` precedes every source line; cleaning looks at the text without it.
    """

    source: LineEncoder
    target: LineEncoder
    cleaning: CleaningConfig | None
    source_tag: str = ""

    def __call__(self, task: Task) -> EncodedBlock:
        lines = task.source.lines(), task.target.lines()
        marks: Marks = np.frombuffer(task.marks, np.uint8).copy()
        source, target = (
            encode(list(compress(side, marks == KEPT)))
            for encode, side in zip((self.source, self.target), lines, strict=True)
        )
        unmarked: Marks = np.full(len(source[1]), KEPT, np.uint8)
        if self.cleaning is not None:
            unmarked = _mark_lengths(source[1] - 1, target[1] - 1, self.cleaning)
            marks[marks == KEPT] = unmarked
        source, target = _select(*source, unmarked == KEPT), _select(*target, unmarked == KEPT)
        if tag := tag_ids(self.source_tag, self.source.tokenizer):
            source = _prepend(tag, *source)
        sides = EncodedSide.of(*source), EncodedSide.of(*target)
        return EncodedBlock(task.corpus, marks, sides, _examples(*lines, marks))


def _mark_lengths(sources: Lengths, targets: Lengths, cleaning: CleaningConfig) -> Marks:
    """Mark the pairs with unsuitable numbers of tokens, without EOS, each with its first reason."""
    shorter, longer = np.minimum(sources, targets), np.maximum(sources, targets)
    marks = np.full(len(sources), KEPT, np.uint8)
    if cleaning.max_ratio is not None:
        marks[longer > cleaning.max_ratio * shorter] = MARKS[RATIO]
    marks[longer > cleaning.max_length] = MARKS[TOO_LONG]
    marks[shorter == 0] = MARKS[EMPTY]
    return marks


def _examples(sources: list[str], targets: list[str], marks: Marks) -> list[Example]:
    """The first `EXAMPLES` dropped pairs of each reason."""
    dropped = np.flatnonzero(marks)
    first = (place for mark in np.unique(marks[dropped]) for place in dropped[marks[dropped] == mark][:EXAMPLES])
    return [
        Example(int(marks[place]), sources[place][:EXAMPLE_CHARACTERS], targets[place][:EXAMPLE_CHARACTERS])
        for place in first
    ]


def _select(tokens: Tokens, lengths: Lengths, kept: NDArray[np.bool_]) -> tuple[Tokens, Lengths]:
    """The sentences that are kept."""
    return (tokens, lengths) if kept.all() else (tokens[np.repeat(kept, lengths)], lengths[kept])


def _prepend(tag: Sequence[int], tokens: Tokens, lengths: Lengths) -> tuple[Tokens, Lengths]:
    """The sentences, each after the tokens of a tag."""
    begins = np.cumsum(lengths) - lengths
    return np.insert(tokens, np.repeat(begins, len(tag)), np.tile(tag, len(lengths))), lengths + np.int32(len(tag))


def encode_split(
    name: str,
    corpora: Sequence[Corpus],
    pairs: int,
    encoder: Encoder,
    marks: Marks | None,
    languages: tuple[str, str],
    folder: Path,
    pool: WorkerPool,
) -> EncodedSplit:
    """Encode a split of `pairs` sentence pairs with these `marks`, write its files into `folder`, and count."""
    counts, examples = [CorpusCounts(corpus.prefix) for corpus in corpora], list[Example]()
    lines, sides = 0, side_names(languages)
    source_size, target_size = (len(side.tokenizer.vocab) for side in (encoder.source, encoder.target))
    with (
        TokenFileWriter(split_stem(folder, name, sides[0]), source_size) as source_file,
        TokenFileWriter(split_stem(folder, name, sides[1]), target_size) as target_file,
        dropped_path(folder, name).open("wb") as dropped_lines,
        Progress(f"encoding {name}", total=pairs, unit="pairs") as progress,
    ):
        for block in pool.map(encoder, _tasks(corpora, marks)):
            for writer, side in zip((source_file, target_file), block.sides, strict=True):
                writer.write(side.tokens, side.lengths)
            counts[block.corpus].add(block)
            dropped_lines.write((np.flatnonzero(block.marks) + lines).astype(LINE_DTYPE).data)
            _add_examples(examples, block.examples)
            lines += len(block.marks)
            progress.advance(len(block.marks))
    if not dropped_path(folder, name).stat().st_size:
        dropped_path(folder, name).unlink()
    return EncodedSplit(name, counts, examples)


def _add_examples(examples: list[Example], more: list[Example]) -> None:
    for example in more:
        if sum(example.mark == earlier.mark for earlier in examples) < EXAMPLES:
            examples.append(example)


def _tasks(corpora: Sequence[Corpus], marks: Marks | None) -> Iterator[Task]:
    begin = 0
    for number, corpus in enumerate(corpora):
        for source, target in read_parallel(corpus.source, corpus.target):
            end = begin + source.count
            yield Task(number, source, target, bytes(source.count) if marks is None else marks[begin:end].tobytes())
            begin = end
