"""Resumes an incomplete output: finds its end, and checks that this run would have written the same."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import BinaryIO

from nmtkit.decoding.formats import rows_per_line
from nmtkit.errors import UserError
from nmtkit.storage.files import parse_json

_COMPARED = 16  # lines at the end of the output that are translated again
_TOLERATED = 10  # one in ten of them may differ: in int8 without the compiled search, translations depend on the batch
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def find_whole_lines(file: BinaryIO, row_format: str, nbest: int, before: int = 0) -> tuple[int, list[bytes]]:
    """Find the end of the last input line whose rows are certainly complete, in an incomplete output.

    The output begins after `before` input lines. Returns the number of complete input lines and the rows of each of the
    last ones, and moves `file` to their end. Raises UserError if the file does not have the given format.
    """
    whole_rows = (row for row in file if row.endswith(b"\n"))
    try:
        if row_format == "tsv":
            lines, ends = _by_number(whole_rows)
        else:
            lines, ends = _by_count(whole_rows, row_format, nbest, before)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"--resume: {file.name} is not in the format of --format {row_format}: use the options that it was written "
            "with, or remove it"
        ) from error
    file.seek(ends[0])
    last = [file.read(end - begin) for begin, end in pairwise(ends)]
    return lines, last


def _by_number(whole_rows: Iterator[bytes]) -> tuple[int, deque[int]]:
    """Count the input lines of a tsv output, except the last, because some of its rows may be missing.

    Returns the count and byte offsets: where the last counted lines begin, then where each of them ends.
    """
    lines = size = 0
    ends = deque[int]([], _COMPARED + 1)
    for _, rows in groupby(whole_rows, lambda row: int(row.partition(b"\t")[0])):
        lines += 1
        ends.append(size)
        size += sum(map(len, rows))
    return max(0, lines - 1), ends or deque([0])


def _by_count(whole_rows: Iterator[bytes], row_format: str, nbest: int, before: int) -> tuple[int, deque[int]]:
    """Like `_by_number`, for formats with a fixed number of rows for each input line; counts all complete lines."""
    lines = size = 0
    ends = deque([0], _COMPARED + 1)
    for count, row in enumerate(whole_rows, 1):
        size += len(row)
        if count % rows_per_line(row_format, nbest) == 0:
            lines += 1
            ends.append(size)
    if row_format == "jsonl" and lines and parse_json(row.decode())["line"] != before + lines:
        raise ValueError(f"the last line is not line {before + lines}")
    return lines, ends


def check_same(last: Sequence[bytes], again: Sequence[bytes], name: str) -> None:
    """Compare the `last` rows of the output `name` with a new translation of the same lines (`again`).

    Raises UserError if more rows have other words than different batches explain. Numbers may differ, because a
    different machine may round differently. If `again` has fewer lines, the input is too short, which
    `StreamStats.check` reports.
    """
    if len(again) < len(last):
        return
    pairs = zip(last, again, strict=True)
    different = sum(_NUMBER.sub(b"", before) != _NUMBER.sub(b"", now) for before, now in pairs)
    if different > len(last) // _TOLERATED:
        raise UserError(
            f"--resume: the last lines of {name} are translated differently now: use the checkpoint, the options and "
            "the input that it was written with, or remove it"
        )
