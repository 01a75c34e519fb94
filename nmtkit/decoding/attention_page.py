"""Attention as a picture: one page of HTML, whole in itself, that shows every layer and head for a few sentences."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.atomic_io import staged_file
from nmtkit.decoding.config import PAGE_LINES
from nmtkit.errors import UserError

MAX_WEIGHTS = 4_000_000  # 10 MB, which a browser opens at once
_TEMPLATE = Path(__file__).with_name("attention.html")
_PLACE = "ATTENTION_DATA"


@dataclass(frozen=True)
class Attention:
    """What the pieces of a sentence and of its translation attend to, in each of L layers and H heads.

    `source` and `target` are the S and T pieces, each with `</s>` at its end. The rows of weights are 1 in all. Row t
    of `decoder` and `cross` is the decoder as it writes piece t of the target; it has read `<s>` and the pieces before
    t by then, and these are the columns of `decoder`.
    """

    text: str
    translation: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    encoder: NDArray[np.float32]  #: (L, H, S, S)
    decoder: NDArray[np.float32]  #: (L, H, T, T)
    cross: NDArray[np.float32]  #: (L, H, T, S)


def write_attention_page(
    path: str | Path, attentions: Iterable[Attention], languages: tuple[str, str] = ("", "")
) -> None:
    """Write the `attention_page` for some sentences. Raises UserError where the file cannot be made."""
    page = attention_page(attentions, languages)
    with staged_file(Path(path)) as file:
        file.write(page)


def attention_page(attentions: Iterable[Attention], languages: tuple[str, str] = ("", "")) -> bytes:
    """The page for some sentences; the codes of their `languages` let a browser choose the right glyphs.

    Raises UserError where they are more than a page takes, or none at all.
    """
    sentences: list[dict[str, Any]] = []
    weights = 0
    for attention in attentions:
        weights += attention.encoder.size + attention.decoder.size // 2 + attention.cross.size
        if len(sentences) == PAGE_LINES or weights > MAX_WEIGHTS:
            raise UserError(
                f"a page of attention takes {PAGE_LINES} sentences with {MAX_WEIGHTS:,} weights, and sentence "
                f"{len(sentences) + 1}, of {len(attention.source)} and {len(attention.target)} pieces, is more: "
                "give it fewer or shorter ones"
            )
        sentences.append(_as_object(attention))
    if not sentences:
        raise UserError("a page of attention needs a sentence, and there are blank lines only")
    data = json.dumps({"languages": languages, "sentences": sentences}, separators=(",", ":"))
    before, after = _TEMPLATE.read_text(encoding="utf-8").split(_PLACE)
    # no text of a sentence can end the script that it stands in, or open a comment there
    return (before + data.replace("<", r"\u003c") + after).encode()


def at_most_a_page(chunks: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The same chunks of lines. Raises UserError, before they are translated, where a page does not take so many."""
    lines = 0
    for chunk in chunks:
        lines += len(chunk)
        if lines > PAGE_LINES:
            raise UserError(f"--attention-html shows at most {PAGE_LINES} lines, and the input has more: give it a few")
        yield chunk


def _as_object(attention: Attention) -> dict[str, Any]:
    """A sentence as JSON has it: weights in thousandths, and of the decoder's those that can be other than 0."""
    fields = dict(vars(attention))
    for kind in ("encoder", "decoder", "cross"):
        fields[kind] = np.rint(fields[kind] * 1000).astype(int).tolist()
    for layer in fields["decoder"]:
        for head in layer:
            head[:] = [row[: position + 1] for position, row in enumerate(head)]
    return fields
