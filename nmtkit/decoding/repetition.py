"""Recognizes outputs that repeat themselves, as the search of a weak model does."""

from collections.abc import Sequence
from operator import eq

_LONGEST = 4  # tokens of a phrase that is repeated
_MORE = 2  # repetitions than in the source


def repeated_ngram(source: Sequence[int], output: Sequence[int]) -> int:
    """Return the size of the n-grams that occur several times because an output repeats a phrase, else 0.

    It repeats a phrase of 1 to 4 tokens in a row, at least two times more than its source does, or is longer than
    2·S + 10 tokens for a source of S tokens.
    """
    repeated = len(output) - len(set(output))  # a run repeats at least its size times _MORE tokens
    for size in range(1, min(_LONGEST, repeated // _MORE) + 1):
        is_likely = b"\1" * (_MORE * size) in _matches(output, size)  # for almost all outputs, this fast check decides
        if is_likely and _run(output, size) >= _run(source, size) + _MORE:
            return size + 1
    return _LONGEST if len(output) > 2 * len(source) + 10 else 0


def _matches(ids: Sequence[int], size: int) -> bytes:
    return bytes(map(eq, ids, ids[size:]))


def _run(ids: Sequence[int], size: int) -> int:
    """Return the largest number of times that any phrase of `size` tokens occurs in a row."""
    return 1 + max(len(run) for run in _matches(ids, size).split(b"\0")) // size
