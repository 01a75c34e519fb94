"""How translations stand in the output: the rows that each line of the input gets."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

from nmtkit.errors import RunError, UserError

if TYPE_CHECKING:
    from nmtkit.decoding.translation import Candidate, Translation

_COMPARED = 16  # lines at the end of an output that is gone on with
_TOLERATED = 10  # one in so many of them may have other words in int8, which depends on its batch
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def rows(layout: str, line: int, translation: "Translation", nbest: int) -> bytes:
    """The rows of an input line, counted from 1, in one of the `FORMATS`; "log_prob" is its log-probability alone."""
    found = _ROWS[layout](line, translation, nbest)
    block = "".join(f"{row}\n" for row in found).encode()
    if block.count(b"\n") != len(found):
        raise RunError(f"line {line}: its translation holds a line feed, which is a bug of nmtkit")
    return block


def _as_text(line: int, translation: "Translation", nbest: int) -> list[str]:
    texts = [candidate.text for candidate in translation.candidates]
    return texts + [""] * (nbest - len(texts))


def _as_log_prob(line: int, translation: "Translation", nbest: int) -> list[str]:
    return [f"{sum(translation.candidates[0].token_log_probs):.6f}"]


def _as_tsv(line: int, translation: "Translation", nbest: int) -> list[str]:
    return [
        f"{line}\t{rank}\t{candidate.score:.6f}\t{candidate.text.replace(chr(9), ' ')}"
        + ("" if candidate.alignment is None else f"\t{_pharaoh(candidate)}")
        for rank, candidate in enumerate(translation.candidates, 1)
    ]


def _as_pharaoh(line: int, translation: "Translation", nbest: int) -> list[str]:
    alignments = [_pharaoh(candidate) for candidate in translation.candidates]
    return alignments + [""] * (nbest - len(alignments))


def _pharaoh(candidate: "Candidate") -> str:
    return " ".join(f"{i}-{j}" for i, j in candidate.alignment or ())


def _as_jsonl(line: int, translation: "Translation", nbest: int) -> list[str]:
    row: dict[str, Any] = {"line": line, "source": translation.source.removesuffix("\r")}  # of a file with \r\n
    if translation.source_tokens is not None:
        row["source_tokens"] = translation.source_tokens
    row["hypotheses"] = [_as_object(candidate) for candidate in translation.candidates]
    return [json.dumps(row, ensure_ascii=False)]


def _as_object(candidate: "Candidate") -> dict[str, Any]:
    fields = {name: value for name, value in vars(candidate).items() if value is not None}
    if candidate.attention is not None:
        fields["attention"] = [[round(share, 4) for share in row] for row in candidate.attention.tolist()]
    return fields


_ROWS: dict[str, Callable[[int, "Translation", int], list[str]]] = {
    "text": _as_text,
    "log_prob": _as_log_prob,
    "tsv": _as_tsv,
    "jsonl": _as_jsonl,
    "pharaoh": _as_pharaoh,
}


def keep_whole_lines(file: BinaryIO, layout: str, nbest: int, before: int = 0) -> tuple[int, list[bytes]]:
    """Cut an output that was left half-written behind the rows of the last input line that surely has all of its own.

    `before` input lines stand elsewhere. Returns how many lines are left, and the rows of each of the last; the file is
    open for those of the next. Raises UserError where it is no such output.
    """
    whole_rows = (row for row in file if row.endswith(b"\n"))
    try:
        if layout == "tsv":
            lines, ends = _by_number(whole_rows, before)
        else:
            lines, ends = _by_count(whole_rows, layout, nbest, before)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"--resume: {file.name} does not hold what --format {layout} writes: give the options that it was begun "
            "with, or remove it"
        ) from error
    file.seek(ends[0])
    last = [file.read(end - begin) for begin, end in pairwise(ends)]
    file.truncate()
    return lines, last


def _by_number(whole_rows: Iterator[bytes], lines_before: int) -> tuple[int, deque[int]]:
    """How many lines there are before the last whose rows begin, of which there may be more to come; and where the last
    of them end, in bytes, with where the first of these begins."""
    lines = size = 0
    ends = deque([0], _COMPARED + 1)
    for row in whole_rows:
        number = int(row.partition(b"\t")[0]) - lines_before
        if number != lines + 1:
            if number != lines + 2:
                raise ValueError(f"line {number} after line {lines + 1}")
            lines += 1
            ends.append(size)
        size += len(row)
    return lines, ends


def _by_count(whole_rows: Iterator[bytes], layout: str, nbest: int, lines_before: int) -> tuple[int, deque[int]]:
    """The same of all lines that are whole, where each has as many rows."""
    rows_a_line = nbest if layout in ("text", "pharaoh") else 1
    lines = size = 0
    ends = deque([0], _COMPARED + 1)
    for count, row in enumerate(whole_rows, 1):
        size += len(row)
        if count % rows_a_line == 0:
            lines += 1
            ends.append(size)
    if layout == "jsonl" and lines and json.loads(row)["line"] != lines_before + lines:
        raise ValueError(f"the last line is not line {lines_before + lines}")
    return lines, ends


def translated_otherwise(last: Sequence[bytes], again: Sequence[bytes]) -> bool:
    """Whether more of the `last` lines have other words `again` than batches can bring about. Numbers may differ:
    another machine rounds them otherwise."""
    pairs = zip(last, again, strict=True)
    different = sum(_NUMBER.sub(b"", before) != _NUMBER.sub(b"", now) for before, now in pairs)
    return different > len(last) // _TOLERATED
