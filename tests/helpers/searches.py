"""Sentences, ways to search their translations, and the comparison of what two devices find."""

import pytest

from nmtkit.data.padding import pad
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.arrays import Ints
from nmtkit.text.vocabulary import EOS

ROWS = [[5, 9, 7, 30, EOS], [12, EOS], [40, 8, 8, 21, 17, 6, EOS]]
WAYS = {
    "beam": {"beam": 4, "nbest": 3, "min_len": 2, "no_repeat_ngram": 2},
    "greedy": {"beam": 1},
    "diverse": {"beam": 4, "diverse_groups": 2, "diversity": 0.5},
    "top-k": {"sampling": True, "beam": 1, "nbest": 2, "top_k": 5},
    "top-p": {"sampling": True, "beam": 1, "top_p": 0.7},
}


def close(some: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> bool:
    """Whether the outputs are the same, and their scores but for rounding."""
    ids = [[[hypothesis.ids for hypothesis in nbest] for nbest in found] for found in (some, others)]
    scores = [[hypothesis.score for nbest in found for hypothesis in nbest] for found in (some, others)]
    return ids[0] == ids[1] and scores[0] == pytest.approx(scores[1], abs=1e-4)


def padded() -> tuple[Ints, Ints]:
    """The sentences, and their lengths."""
    return pad(ROWS)
