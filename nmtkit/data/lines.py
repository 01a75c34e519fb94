"""Line numbers of the sentence pairs of a split in the original text. Only dropped lines are stored.

`docs/reference/dataset.md` describes the file. If k lines before pair i were dropped, the pair is line i + k of the
text, counted from 0. Bisection finds k.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmtkit.data.binary import REMEDY
from nmtkit.errors import UserError
from nmtkit.storage.files import map_numbers

LINE_DTYPE = np.dtype("<u8")
MAX_NAMED_LINES = 10  # lines listed in one error message


def dropped_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.dropped"


class LineNumbers:
    """Maps each of `pairs` sentence pairs to its line in the original text.

    `corpora` are the names of the texts of the split, with their numbers of lines. `dropped` is the file of dropped
    lines, which is absent if no line was dropped. Raises UserError if the numbers do not match.
    """

    def __init__(self, pairs: int, corpora: Sequence[tuple[str, int]], dropped: Path) -> None:
        self._corpora = corpora
        size = dropped.stat().st_size if dropped.exists() else 0
        if size % LINE_DTYPE.itemsize:
            raise UserError(f"{dropped}: {size} bytes are not a whole number of entries; {REMEDY}")
        self._dropped = np.empty(0, LINE_DTYPE)
        if size:
            self._dropped = map_numbers(dropped, LINE_DTYPE)
        lines = sum(lines for _, lines in corpora)
        if pairs + len(self._dropped) != lines:
            raise UserError(f"{dropped}: does not match {pairs} sentence pairs of {lines} lines; {REMEDY}")

    def locate(self, pair: int) -> tuple[str, int]:
        """Return the name of the text and the line number (from 1) of a sentence pair (counted from 0)."""
        dropped_before = bisect_right(range(len(self._dropped)), pair, key=lambda k: int(self._dropped[k]) - k)
        line = pair + dropped_before
        for name, lines in self._corpora:
            if line < lines:
                return name, line + 1
            line -= lines
        raise IndexError(f"pair {pair}")

    def describe(self, pairs: Sequence[int]) -> str:
        """Describe the lines of the first few of these sentence pairs, for an error message."""
        numbers: dict[str, list[str]] = {}
        for pair in pairs[:MAX_NAMED_LINES]:
            text, line = self.locate(pair)
            numbers.setdefault(text, []).append(str(line))
        named = [f"{text}, line{'s' * (len(lines) > 1)} {', '.join(lines)}" for text, lines in numbers.items()]
        return "; ".join(named) + ", …" * (len(pairs) > MAX_NAMED_LINES)
