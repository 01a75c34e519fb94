"""Resumes an incomplete output: finds its end, and checks that this run would have written the same."""

import re
from collections import deque
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import BinaryIO

from nmtkit.decoding.formats import rows_per_line
from nmtkit.errors import UserError

_COMPARED = 16  # lines at the end of the output that are translated again
_TOLERATED = 10  # one in ten of them may differ: in int8 without the compiled search, translations depend on the batch
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def find_whole_lines(file: BinaryIO, row_format: str, nbest: int) -> tuple[int, list[bytes]]:
    """Find the end of the last input line but one in an incomplete output; the last may lack rows.

    Returns the number of input lines before this end and the rows of each of the last ones, and moves `file` to it.
    """
    per_line = rows_per_line(row_format, nbest)

    def line_of(numbered: tuple[int, bytes]) -> object:
        number, row = numbered
        return row.partition(b"\t")[0] if row_format == "tsv" else number // per_line

    lines = size = 0
    begins = deque[int]([], _COMPARED + 1)  # byte offsets of the last lines
    for _, rows in groupby(enumerate(row for row in file if row.endswith(b"\n")), line_of):
        lines += 1
        begins.append(size)
        size += sum(len(row) for _, row in rows)
    file.seek(begins[0] if begins else 0)
    last = [file.read(end - begin) for begin, end in pairwise(begins)]
    return max(0, lines - 1), last


def check_same(last: Sequence[bytes], again: Sequence[bytes], name: str) -> None:
    """Compare the `last` rows of the output `name` with a new translation of the same lines (`again`).

    Raises UserError if more rows have other words than different batches explain, or if `again` has fewer lines.
    Numbers may differ, because a different machine may round differently.
    """
    if len(again) < len(last):
        raise UserError(f"--resume: {name} has more lines than the input: use the same input")
    pairs = zip(last, again, strict=True)
    different = sum(_NUMBER.sub(b"", before) != _NUMBER.sub(b"", now) for before, now in pairs)
    if different > len(last) // _TOLERATED:
        raise UserError(
            f"--resume: the last lines of {name} are translated differently now: use the checkpoint, the options and "
            "the input that it was written with, or remove it"
        )
