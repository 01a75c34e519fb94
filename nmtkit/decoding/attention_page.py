"""A self-contained HTML page that shows the attention of every layer and head for a few sentences."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.config import PAGE_LINES
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.outputs import writing_stdout
from nmtkit.text.input_stream import STANDARD_STREAM

MAX_WEIGHTS = 4_000_000  # a page of 10 MB, which a browser opens without delay
_TEMPLATE = Path(__file__).with_name("attention.html")


@dataclass(frozen=True)
class Attention:
    """The attention weights of a sentence and its translation, in each of L layers and H heads.

    `source` has S pieces and `target` has T, both with `</s>` at the end. Weights sum to 1 along the last dimension.
    Index t of T is the decoding step that produces piece t of the target. The last dimension of `decoder` contains the
    inputs of the decoder: `<s>` and the pieces before t.
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
    """Write a page of a few sentences; "-" is stdout. Their `languages` let a browser choose the right glyphs.

    Raises UserError if there is no sentence, if there are more sentences or weights than a page shows, or if writing
    fails.
    """
    sentences: list[dict[str, Any]] = []
    weights = 0
    for attention in attentions:
        weights += attention.encoder.size + attention.decoder.size // 2 + attention.cross.size
        if len(sentences) == PAGE_LINES or weights > MAX_WEIGHTS:
            raise UserError(
                f"--attention-html shows at most {PAGE_LINES} sentences with {MAX_WEIGHTS:,} weights, but sentence "
                f"{len(sentences) + 1}, of {len(attention.source)} and {len(attention.target)} pieces, exceeds that: "
                "use fewer or shorter sentences"
            )
        sentences.append(_as_object(attention))
    if not sentences:
        raise UserError("--attention-html needs a sentence, but the input has only blank lines")
    data = json.dumps({"languages": languages, "sentences": sentences}, separators=(",", ":"))
    before, after = _TEMPLATE.read_text(encoding="utf-8").split("ATTENTION_DATA")
    # without "<", the text of a sentence cannot end the surrounding script element or open a comment in it
    page = (before + data.replace("<", r"\u003c") + after).encode()
    with writing_stdout() if Path(path) == STANDARD_STREAM else staged_file(Path(path)) as file:
        file.write(page)
        file.flush()


def at_most_a_page(chunks: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield chunks of lines unchanged. Raises UserError instead of a chunk that exceeds the lines of a page."""
    lines = 0
    for chunk in chunks:
        lines += len(chunk)
        if lines > PAGE_LINES:
            raise UserError(
                f"--attention-html shows at most {PAGE_LINES} lines, but the input has more: use fewer lines"
            )
        yield chunk


def _as_object(attention: Attention) -> dict[str, Any]:
    """Convert a sentence to JSON values, with weights in thousandths and without the decoder's masked weights."""
    fields = dict(vars(attention))
    for kind in ("encoder", "decoder", "cross"):
        fields[kind] = np.rint(fields[kind] * 1000).astype(int).tolist()
    for layer in fields["decoder"]:
        for head in layer:
            head[:] = [row[: position + 1] for position, row in enumerate(head)]
    return fields
