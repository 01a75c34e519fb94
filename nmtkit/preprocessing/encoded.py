"""The results of encoding: blocks of sentences as ids, and the counts of a split."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Tokens
from nmtkit.data.description import ShardSummary, SplitSummary
from nmtkit.preprocessing.config import REASONS
from nmtkit.preprocessing.line_encoder import Lengths
from nmtkit.preprocessing.reasons import KEPT, Marks, by_reason, count_marks
from nmtkit.text.languages import side_names

EXAMPLES = 5  #: dropped pairs kept for each reason


class Example(NamedTuple):
    """A dropped pair, with long lines truncated."""

    mark: int
    source: str
    target: str


class EncodedSide(NamedTuple):
    """One side of an encoded block: its concatenated tokens, and the lengths of its sentences with EOS."""

    tokens: Tokens
    lengths: Lengths
    unknown: int  #: number of unknown tokens


class EncodedBlock(NamedTuple):
    """The kept sentence pairs of a block of text."""

    corpus: int  #: index of the corpus
    marks: Marks  #: the mark of each pair in the block
    sides: tuple[EncodedSide, EncodedSide]
    examples: list[Example]  #: the first dropped pairs of each reason


@dataclass
class CorpusCounts:
    """Counts of a corpus. `tokens` (including EOS) and `unknown` count the tokens of kept pairs by side."""

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


@dataclass
class EncodedSplit:
    """The counts of a split by corpus, the first `EXAMPLES` pairs dropped for each reason, and the complete shards,
    which may already contain pairs of the next block."""

    name: str
    corpora: list[CorpusCounts]
    examples: list[Example] = field(default_factory=list)
    shards: list[ShardSummary] = field(default_factory=list)  #: empty if the split is not sharded

    @property
    def lines(self) -> int:
        """The number of lines counted so far."""
        return sum(corpus.pairs for corpus in self.corpora)

    @property
    def kept(self) -> int:
        """The number of kept pairs among these lines."""
        return sum(corpus.kept for corpus in self.corpora)

    def add(self, block: EncodedBlock) -> None:
        self.corpora[block.corpus].add(block)
        for example in block.examples:
            if sum(example.mark == earlier.mark for earlier in self.examples) < EXAMPLES:
                self.examples.append(example)

    def summary(self, languages: tuple[str, str]) -> SplitSummary:
        """Create the entry of the split in dataset.json."""
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
            self.shards,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncodedSplit":
        """Restore an `EncodedSplit` from the values of `asdict`, with lists of counts."""
        corpora = [
            CorpusCounts(prefix, *(np.array(each, np.int64) for each in counts))
            for prefix, *counts in map(dict.values, values["corpora"])
        ]
        examples = [Example(*example) for example in values["examples"]]
        return cls(values["name"], corpora, examples, [ShardSummary(**shard) for shard in values["shards"]])
