"""Attention maps: a self-contained HTML page that shows every layer and head for a few sentences."""

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
    """The attention weights of a sentence and its translation, in each of L layers and H heads.

    `source` and `target` are the S and T pieces, with `</s>` at the end. Each row of weights sums to 1. Row t of
    `decoder` and `cross` is the decoding step that produces piece t of the target; the columns of `decoder` are the
    inputs of the decoder so far, `<s>` and the pieces before t.
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
    """Write the `attention_page` of some sentences. Raises UserError if the file cannot be written."""
    page = attention_page(attentions, languages)
    with staged_file(Path(path)) as file:
        file.write(page)


def attention_page(attentions: Iterable[Attention], languages: tuple[str, str] = ("", "")) -> bytes:
    """The page of some sentences. The codes of their `languages` let a browser choose the right glyphs.

    Raises UserError for more sentences or weights than fit on a page, or for no sentence.
    """
    sentences: list[dict[str, Any]] = []
    weights = 0
    for attention in attentions:
        weights += attention.encoder.size + attention.decoder.size // 2 + attention.cross.size
        if len(sentences) == PAGE_LINES or weights > MAX_WEIGHTS:
            raise UserError(
                f"a page of attention takes {PAGE_LINES} sentences with {MAX_WEIGHTS:,} weights, and sentence "
                f"{len(sentences) + 1}, of {len(attention.source)} and {len(attention.target)} pieces, exceeds that: "
                "use fewer or shorter sentences"
            )
        sentences.append(_as_object(attention))
    if not sentences:
        raise UserError("a page of attention needs a sentence, but there are blank lines only")
    data = json.dumps({"languages": languages, "sentences": sentences}, separators=(",", ":"))
    before, after = _TEMPLATE.read_text(encoding="utf-8").split(_PLACE)
    # no text of a sentence can end the script element around it, or open a comment in it
    return (before + data.replace("<", r"\u003c") + after).encode()


def at_most_a_page(chunks: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The same chunks of lines. Raises UserError, before they are translated, for more lines than a page has."""
    lines = 0
    for chunk in chunks:
        lines += len(chunk)
        if lines > PAGE_LINES:
            raise UserError(
                f"--attention-html shows at most {PAGE_LINES} lines, but the input has more: use fewer lines"
            )
        yield chunk


def _as_object(attention: Attention) -> dict[str, Any]:
    """A sentence as JSON values: weights in thousandths; of the decoder's only those below the causal mask."""
    fields = dict(vars(attention))
    for kind in ("encoder", "decoder", "cross"):
        fields[kind] = np.rint(fields[kind] * 1000).astype(int).tolist()
    for layer in fields["decoder"]:
        for head in layer:
            head[:] = [row[: position + 1] for position, row in enumerate(head)]
    return fields
