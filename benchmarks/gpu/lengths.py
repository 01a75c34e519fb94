"""Lengths of sentences as in news: about 27 pieces, from a log-normal distribution."""

import numpy as np
from numpy.typing import NDArray

LONGEST = 250  # pieces
AVERAGE = 28  # tokens, with EOS
_MEAN, _DEVIATION = 3.2, 0.5  # of the logarithm
_SPREAD = 0.15  # standard deviation of a source's length relative to its target's


def news_lengths(random: np.random.Generator, sentences: int) -> NDArray[np.int32]:
    """The numbers of pieces of that many sentences, (sentences,)."""
    return clip(random.lognormal(_MEAN, _DEVIATION, sentences))


def pair_lengths(random: np.random.Generator, pairs: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The numbers of pieces of sources and targets, both (pairs,)."""
    target = news_lengths(random, pairs)
    return clip(target * random.normal(1, _SPREAD, pairs)), target


def clip(lengths: NDArray[np.float64]) -> NDArray[np.int32]:
    """Whole numbers between 2 and `LONGEST`."""
    return np.clip(lengths, 2, LONGEST).astype(np.int32)
