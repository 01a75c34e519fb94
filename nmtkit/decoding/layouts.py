"""How translations stand in the output: the rows that each line of the input gets."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from nmtkit.errors import RunError, UserError

if TYPE_CHECKING:
    from nmtkit.decoding.translation import Candidate, Translation


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


def keep_whole_lines(file: BinaryIO, layout: str, nbest: int, before: int = 0) -> int:
    """Cut an output that was left half-written behind the rows of the last input line that surely has all of its own.

    `before` input lines stand elsewhere. Returns how many are left, and the file open for the rows of the next. Raises
    UserError where it is no such output.
    """
    whole_rows = (row for row in file if row.endswith(b"\n"))
    try:
        if layout == "tsv":
            lines, size = _by_number(whole_rows, before)
        else:
            lines, size = _by_count(whole_rows, layout, nbest, before)
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"--resume: {file.name} does not hold what --format {layout} writes: give the options that it was begun "
            "with, or remove it"
        ) from error
    file.seek(size)
    file.truncate()
    return lines


def _by_number(whole_rows: Iterator[bytes], lines_before: int) -> tuple[int, int]:
    """Lines and bytes before the last line whose rows begin; of these there may be more to come."""
    lines = before = size = 0
    for row in whole_rows:
        number = int(row.partition(b"\t")[0]) - lines_before
        if number != lines + 1:
            if number != lines + 2:
                raise ValueError(f"line {number} after line {lines + 1}")
            lines, before = lines + 1, size
        size += len(row)
    return lines, before


def _by_count(whole_rows: Iterator[bytes], layout: str, nbest: int, lines_before: int) -> tuple[int, int]:
    """Lines and bytes, where each line has as many rows."""
    rows_a_line = nbest if layout in ("text", "pharaoh") else 1
    lines = whole = size = 0
    for count, row in enumerate(whole_rows, 1):
        size += len(row)
        if count % rows_a_line == 0:
            lines, whole = lines + 1, size
    if layout == "jsonl" and lines and json.loads(row)["line"] != lines_before + lines:
        raise ValueError(f"the last line is not line {lines_before + lines}")
    return lines, whole
