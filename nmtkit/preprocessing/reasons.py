"""Marks of pairs. A mark is the position, from 1, in `config.REASONS` of the reason why a pair is dropped."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nmtkit.config import flag
from nmtkit.preprocessing.config import REASONS

Marks = NDArray[np.uint8]  # (pairs,)

KEPT = 0  #: the mark of a kept pair
MARKS: Mapping[str, int] = {reason: number for number, reason in enumerate(REASONS, 1)}
EMPTY, DUPLICATE, TOO_LONG, RATIO = (MARKS[reason] for reason in ("empty", "duplicate", "too long", "ratio"))


def count_marks(marks: Marks) -> NDArray[np.int64]:
    """Count the pairs with each mark (1 + reasons,). The first count is the number of kept pairs."""
    return np.bincount(marks, minlength=1 + len(REASONS))


def by_reason(counts: NDArray[np.int64]) -> dict[str, int]:
    """Map reasons to the counts (1 + reasons,) of `count_marks`, without zeros."""
    return {reason: int(counts[mark]) for reason, mark in MARKS.items() if counts[mark]}


def format_dropped(dropped: Mapping[str, int]) -> str:
    """Format the numbers of dropped pairs for a message, such as "3 duplicate, 1 empty"."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "nothing"


def all_dropped_message(split: str, dropped: Mapping[str, int]) -> str:
    """Create the error message for a split in which no pair is kept."""
    causes = [flag(option) for reason, options in REASONS.items() if dropped.get(reason) for option in options]
    remedy = f"relax {' or '.join(causes)}" if causes else "use different text"
    return f"every sentence pair of {split} was dropped ({format_dropped(dropped)}): {remedy}"
