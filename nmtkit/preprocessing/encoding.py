"""The second pass: encodes text as ids, and drops unsuitable pairs of the training text."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import TokenFileWriter, Tokens
from nmtkit.data.description import SplitSummary, split_stem
from nmtkit.data.lines import LINE_DTYPE, dropped_path
from nmtkit.log import Progress
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.line_encoder import Lengths, LineEncoder
from nmtkit.preprocessing.scan import Corpus
from nmtkit.text import Block, read_parallel
from nmtkit.vocab import UNK
from nmtkit.workers import WorkerPool

Task = tuple[int, Block, Block, bytes]  # corpus number, source, target, one byte per pair: is it a duplicate?


@dataclass(frozen=True)
class EncodedSide:
    """One side of an encoded block: its concatenated tokens, and the length of each sentence, EOS counted."""

    tokens: Tokens
    lengths: Lengths
    unknown: int  #: number of unknown tokens


@dataclass(frozen=True)
class EncodedBlock:
    """The kept sentence pairs of a block of text."""

    corpus: int  #: number of the corpus
    lines: int  #: lines of the block, dropped ones included
    sides: tuple[EncodedSide, EncodedSide]
    dropped: Counter[str]  #: number of dropped pairs, by reason
    dropped_lines: NDArray[np.int64]  #: counted from the first line of the block


@dataclass(frozen=True)
class Encoder:
    """Encodes a block of text, in a worker. Without `cleaning` every pair is kept."""

    source: LineEncoder
    target: LineEncoder
    cleaning: CleaningConfig | None

    def __call__(self, task: Task) -> EncodedBlock:
        corpus, source_block, target_block, duplicates = task
        sources, targets = self.source(source_block.lines()), self.target(target_block.lines())
        dropped = Counter[str]()
        kept: NDArray[np.bool_] = np.ones(source_block.count, np.bool_)
        if self.cleaning is not None:
            kept = _select_kept(sources[1] - 1, targets[1] - 1, duplicates, self.cleaning, dropped)
        sides = _select(*sources, kept), _select(*targets, kept)
        return EncodedBlock(corpus, source_block.count, sides, dropped, np.flatnonzero(~kept))


def _select_kept(
    sources: Lengths, targets: Lengths, duplicates: bytes, cleaning: CleaningConfig, dropped: Counter[str]
) -> NDArray[np.bool_]:
    """Select the pairs to keep, in a boolean array (pairs,). Count the others in `dropped` by their first reason.

    `sources` and `targets` are lengths without EOS.
    """
    shorter, longer = np.minimum(sources, targets), np.maximum(sources, targets)
    reasons = {
        "empty": shorter == 0,
        "duplicate": np.frombuffer(duplicates, np.bool_),
        "too long": longer > cleaning.max_length,
    }
    if cleaning.max_ratio is not None:
        reasons["ratio"] = longer > cleaning.max_ratio * shorter
    kept = np.ones(len(sources), np.bool_)
    for reason, applies in reasons.items():
        if count := np.count_nonzero(kept & applies):
            dropped[reason] += int(count)
        kept &= ~applies
    return kept


def _select(tokens: Tokens, lengths: Lengths, kept: NDArray[np.bool_]) -> EncodedSide:
    if not kept.all():
        tokens, lengths = tokens[np.repeat(kept, lengths)], lengths[kept]
    return EncodedSide(tokens, lengths, int(np.count_nonzero(tokens == UNK)))


def encode_split(
    name: str,
    corpora: Sequence[Corpus],
    pairs: int,
    encoder: Encoder,
    duplicates: NDArray[np.bool_] | None,
    languages: tuple[str, str],
    folder: Path,
    pool: WorkerPool,
) -> SplitSummary:
    """Encode a split of `pairs` sentence pairs, write its files into `folder`, and return its summary."""
    dropped, unknown, lines = Counter[str](), [0, 0], [0] * len(corpora)
    source_size, target_size = (len(side.tokenizer.vocab) for side in (encoder.source, encoder.target))
    with (
        TokenFileWriter(split_stem(folder, name, languages[0]), source_size) as source_file,
        TokenFileWriter(split_stem(folder, name, languages[1]), target_size) as target_file,
        dropped_path(folder, name).open("wb") as dropped_lines,
        Progress(f"encoding {name}", total=pairs, unit="pairs") as progress,
    ):
        writers = source_file, target_file
        for block in pool.map(encoder, _tasks(corpora, duplicates)):
            for number, (writer, side) in enumerate(zip(writers, block.sides, strict=True)):
                writer.write(side.tokens, side.lengths)
                unknown[number] += side.unknown
            dropped.update(block.dropped)
            dropped_lines.write((block.dropped_lines + sum(lines)).astype(LINE_DTYPE).data)
            lines[block.corpus] += block.lines
            progress.advance(block.lines)
    tokens = dict(zip(languages, (writer.tokens for writer in writers), strict=True))
    if not dropped:
        dropped_path(folder, name).unlink()
    texts = [(corpus.prefix, count) for corpus, count in zip(corpora, lines, strict=True)]
    counts = dict(zip(languages, unknown, strict=True))
    return SplitSummary(name, source_file.sentences, tokens, counts, dict(dropped), texts)


def _tasks(corpora: Sequence[Corpus], duplicates: NDArray[np.bool_] | None) -> Iterator[Task]:
    begin = 0
    for number, corpus in enumerate(corpora):
        for source, target in read_parallel(corpus.source, corpus.target):
            end = begin + source.count
            yield number, source, target, bytes(source.count) if duplicates is None else duplicates[begin:end].tobytes()
            begin = end
