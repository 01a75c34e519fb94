"""Statistics of a split for the page of --report: lengths of sentences and frequencies of pieces."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.corpus import Split
from nmtkit.data.sentences import Sentences
from nmtkit.text.vocabulary import SPECIALS, UNK

_PAIRS_PER_READ = 1 << 14
RATIO_LIMIT, RATIO_STEPS = 3, 8  #: the ratios of lengths are counted from 2⁻³ to 2³, in steps of 2^(1/8)

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SideStatistics:
    """Lengths are counted in tokens without the end of the sentence."""

    lengths: Counts  #: (longest + 1,): number of sentences of each length
    pieces: Counts  #: (W,): number of occurrences of each entry of the vocabulary

    @property
    def tokens(self) -> int:
        """Number of tokens, without the ends of sentences."""
        return int(self.pieces[UNK] + self._frequencies.sum())

    @property
    def unknown(self) -> int:
        return int(self.pieces[UNK])

    @property
    def used(self) -> int:
        """Number of pieces that occur. This and the following numbers do not count the special ones."""
        return int(np.count_nonzero(self._frequencies))

    @property
    def used_once(self) -> int:
        return int(np.count_nonzero(self._frequencies == 1))

    def frequencies(self) -> Counts:
        """The numbers of occurrences of the pieces that occur, in descending order."""
        return np.sort(self._frequencies[self._frequencies > 0])[::-1]

    def pieces_for(self, share: float) -> int:
        """The number of most frequent pieces that make up this share of the tokens other than `<unk>`."""
        sums = np.cumsum(self.frequencies())
        return int(np.searchsorted(sums, share * sums[-1])) + 1 if len(sums) else 0

    @property
    def _frequencies(self) -> Counts:
        return self.pieces[len(SPECIALS) :]


@dataclass(frozen=True)
class SplitStatistics:
    """The statistics of both sides of a split, and of the ratios of their lengths."""

    source: SideStatistics
    target: SideStatistics
    ratios: Counts  #: number of pairs by log₂(target / source tokens), clipped to ± `RATIO_LIMIT`


def split_statistics(split: Split, sizes: tuple[int, int]) -> SplitStatistics:
    """Count the lengths and pieces of a split, in bounded memory. `sizes` are those of the vocabularies."""
    source, target = split.source, split.target
    bins = 2 * RATIO_LIMIT * RATIO_STEPS
    ratios = np.zeros(bins, np.int64)
    for begin in range(0, len(split), _PAIRS_PER_READ):
        lengths = [side.lengths[begin : begin + _PAIRS_PER_READ] for side in (source, target)]
        ratio = np.log2(np.maximum(lengths[1] - 1, 1) / np.maximum(lengths[0] - 1, 1))
        places = np.floor((ratio + RATIO_LIMIT) * RATIO_STEPS).astype(np.int64)
        ratios += np.bincount(np.clip(places, 0, bins - 1), minlength=bins)
    return SplitStatistics(_side_statistics(source, sizes[0]), _side_statistics(target, sizes[1]), ratios)


def _side_statistics(side: Sentences, size: int) -> SideStatistics:
    lengths, pieces = np.zeros(1, np.int64), np.zeros(size, np.int64)
    for begin in range(0, len(side), _PAIRS_PER_READ):
        tokens, read = side.gather(np.arange(begin, min(begin + _PAIRS_PER_READ, len(side))))
        counted = np.bincount(read - 1, minlength=len(lengths))
        counted[: len(lengths)] += lengths
        lengths = counted
        pieces += np.bincount(tokens, minlength=size)
    return SideStatistics(lengths, pieces)
