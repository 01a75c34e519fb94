"""The formats of the output: the rows of each input line."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nmtkit.decoding.alignment import balance
from nmtkit.decoding.config import ALIGNMENT_FORMATS

if TYPE_CHECKING:
    from nmtkit.decoding.translation import Candidate, Translation

LOG_PROB = "log_prob"  #: a further format: only the log-probability of the best candidate


def rows(row_format: str, line: int, translation: "Translation", nbest: int) -> bytes:
    """Return the rows of an input line, in one of the `FORMATS` or `LOG_PROB`. `line` is its number, from 1."""
    found = _ROWS[row_format](line, translation)
    missing = rows_per_line(row_format, nbest) - len(found)
    return "".join(f"{row}\n" for row in [*found, *[""] * missing]).encode()


def rows_per_line(row_format: str, nbest: int) -> int:
    """Return the number of rows of each input line, for all formats except tsv, where it varies."""
    return nbest if row_format in ("text", *ALIGNMENT_FORMATS) else 1


def _as_tsv(line: int, translation: "Translation") -> list[str]:
    return [
        f"{line}\t{rank}\t{candidate.score:.6f}\t{candidate.text.replace(chr(9), ' ')}"
        + ("" if candidate.alignment is None else f"\t{_pharaoh(candidate)}")
        for rank, candidate in enumerate(translation.candidates, 1)
    ]


def _as_pharaoh_pieces(line: int, translation: "Translation") -> list[str]:
    """Link each piece to the source piece with its largest weight after `balance`, counted with the tag.

    A line that was split has no links.
    """
    alignments, tag = [], translation.tag_tokens
    for candidate in translation.candidates:
        best: list[int] = []
        if candidate.attention is not None and (weights := candidate.attention[:-1, tag:-1]).size:  # without </s>
            best = balance(weights).argmax(1).tolist()
        alignments.append(" ".join(f"{tag + i}-{j}" for j, i in enumerate(best)))
    return alignments


def _pharaoh(candidate: "Candidate") -> str:
    return " ".join(f"{i}-{j}" for i, j in candidate.alignment or ())


def _as_jsonl(line: int, translation: "Translation") -> list[str]:
    row: dict[str, Any] = {"line": line, "source": translation.source.removesuffix("\r")}  # the line ended with \r\n
    if translation.source_tokens is not None:
        row["source_tokens"] = translation.source_tokens
    row["hypotheses"] = [_as_object(candidate) for candidate in translation.candidates]
    return [json.dumps(row, ensure_ascii=False)]


def _as_object(candidate: "Candidate") -> dict[str, Any]:
    fields = {name: value for name, value in vars(candidate).items() if value is not None}
    if candidate.attention is not None:
        fields["attention"] = [[round(share, 4) for share in row] for row in candidate.attention.tolist()]
    return fields


_ROWS: dict[str, Callable[[int, "Translation"], list[str]]] = {
    "text": lambda line, translation: [candidate.text for candidate in translation.candidates],
    LOG_PROB: lambda line, translation: [f"{sum(translation.candidates[0].token_log_probs):.6f}"],
    "tsv": _as_tsv,
    "jsonl": _as_jsonl,
    "pharaoh": lambda line, translation: [_pharaoh(candidate) for candidate in translation.candidates],
    "pharaoh-pieces": _as_pharaoh_pieces,
}
