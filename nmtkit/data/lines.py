"""Where the sentence pairs of a split stand in the text: only the lines that were left out need to be stored.

`docs/formats.md` describes the file. Pair i stands i + k lines below the first, where k lines above it were left out;
since each of these pushes the pairs behind it down by one, k is found by bisection.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nmtkit.data.binary import REMEDY
from nmtkit.errors import UserError

LINE = np.dtype("<u8")
MOST_NAMED = 10  # lines in an error


def dropped_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.dropped"


class LineNumbers:
    """Names the line of the text that each of `pairs` sentence pairs comes from.

    `corpora` are the names of the texts that make a split, with their lines; `dropped` is the file of those that were
    left out, absent if there are none. Raises UserError where these do not fit.
    """

    def __init__(self, pairs: int, corpora: Sequence[tuple[str, int]], dropped: Path) -> None:
        self._corpora = corpora
        size = dropped.stat().st_size if dropped.exists() else 0
        if size % LINE.itemsize:
            raise UserError(f"{dropped}: {size} bytes are not whole numbers; {REMEDY}")
        self._dropped = np.memmap(dropped, LINE, "r") if size else np.empty(0, LINE)
        lines = sum(lines for _, lines in corpora)
        if pairs + len(self._dropped) != lines:
            raise UserError(f"{dropped}: does not fit {pairs} sentence pairs of {lines} lines; {REMEDY}")

    def place(self, pair: int) -> tuple[str, int]:
        """The text, and the number of the line in it, counted from 1, of a sentence pair, counted from 0."""
        above = bisect_right(range(len(self._dropped)), pair, key=lambda k: int(self._dropped[k]) - k)
        line = pair + above
        for name, lines in self._corpora:
            if line < lines:
                return name, line + 1
            line -= lines
        raise IndexError(f"pair {pair}")

    def name(self, pairs: Sequence[int]) -> str:
        """The lines of the first few of these sentence pairs, for an error."""
        numbers: dict[str, list[str]] = {}
        for pair in pairs[:MOST_NAMED]:
            text, line = self.place(pair)
            numbers.setdefault(text, []).append(str(line))
        named = [f"{text}, line{'s' * (len(lines) > 1)} {', '.join(lines)}" for text, lines in numbers.items()]
        return "; ".join(named) + ", …" * (len(pairs) > MOST_NAMED)
