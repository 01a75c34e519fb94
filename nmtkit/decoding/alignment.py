"""Alignments of tokens and words, from attention."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 3
_LEAST = 1e-3  # attention of every pair, so that noise does not link a source token that no target token attends to


def balance(attention: NDArray[np.float32]) -> NDArray[np.float32]:
    """Let source tokens compete for target tokens: weight attention (T, S), so that the largest weights are links.

    A decoder also attends to a noun when it predicts the noun's article, so the largest attention would link both to
    the noun. Columns and rows are therefore scaled to sum to 1 in turn (Sinkhorn and Knopp 1967), so that the source's
    article gets its share. The factor √attention decides where source tokens have no competitor.
    """
    shares: NDArray[np.float32] = attention + np.float32(_LEAST)
    for _ in range(_ROUNDS):
        shares = shares / shares.sum(0)
        shares = shares / shares.sum(1, keepdims=True)
    return np.sqrt(attention) * shares


def align_words(
    attention: NDArray[np.float32], source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[float, int, int]]:
    """Align each target word to the source word with the largest weight after `balance`, from attention (T, S).

    Returns triples of weight, source word and target word. `source_words` and `target_words` are the number of the word
    of each piece, from 0.
    """
    source_starts, target_starts = (
        np.flatnonzero(np.diff(words, prepend=words[0] - 1)) for words in (source_words, target_words)
    )
    of_words = np.add.reduceat(np.add.reduceat(attention, source_starts, axis=1), target_starts, axis=0)
    weights = balance(of_words)
    sources, targets = (list(dict.fromkeys(words)) for words in (source_words, target_words))
    best = zip(weights.max(1).tolist(), weights.argmax(1).tolist(), targets, strict=True)
    return [(weight, sources[i], j) for weight, i, j in best]
