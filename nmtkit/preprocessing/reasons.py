"""The reasons for which nmt-preprocess drops a pair, and the mark of each: its position in `REASONS`, from 1.

A pair is counted under the first reason that applies, in the order of `REASONS`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Marks = NDArray[np.uint8]  # one for each pair

EMPTY, OVERLAP, DUPLICATE, TOO_LONG, RATIO = "empty", "overlap", "duplicate", "too long", "ratio"

# reason -> the options that control it
REASONS: Mapping[str, tuple[str, ...]] = {
    EMPTY: (),
    "identical": ("--drop-identical",),
    "characters": ("--min-chars", "--max-chars"),
    "words": ("--min-words", "--max-words"),
    "character ratio": ("--max-char-ratio",),
    "repetition": ("--max-repeats",),
    "URL": ("--max-url-share",),
    "alphanumeric": ("--min-alphanumeric",),
    "script": ("--min-script",),
    "long word": ("--max-word-length",),
    OVERLAP: ("--exclude-overlap",),
    "language": ("--min-langid",),
    DUPLICATE: ("--dedup",),
    TOO_LONG: ("--max-length",),
    RATIO: ("--max-ratio",),
}
KEPT = 0  #: the mark of a kept pair
MARKS: Mapping[str, int] = {reason: number for number, reason in enumerate(REASONS, 1)}


def count_marks(marks: Marks) -> NDArray[np.int64]:
    """Count the pairs with each mark, in an array (1 + reasons,); the first entry is the number of kept pairs."""
    return np.bincount(marks, minlength=1 + len(REASONS))


def by_reason(counts: NDArray[np.int64]) -> dict[str, int]:
    """The numbers of `count_marks` by reason, without those that are zero."""
    return {reason: int(counts[mark]) for reason, mark in MARKS.items() if counts[mark]}


def format_dropped(dropped: Mapping[str, int]) -> str:
    """The dropped pairs in a message: 3 duplicate, 1 empty."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "nothing"


def all_dropped_message(split: str, dropped: Mapping[str, int]) -> str:
    """The error for a split in which no pair is kept."""
    causes = [option for reason in REASONS if dropped.get(reason) for option in REASONS[reason]]
    remedy = f"relax {' or '.join(causes)}" if causes else "use other text"
    return f"every sentence pair of {split} was dropped ({format_dropped(dropped)}): {remedy}"
