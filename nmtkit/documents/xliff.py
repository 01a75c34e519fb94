"""XLIFF 1.2 and 2.0: translates sources whose targets are missing, empty or marked as new."""

import re
from collections.abc import Mapping, Sequence

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import inline_xml, local, render_xml, xml_source
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, is_translated, scan, token_pairs
from nmtkit.text.segment import Kind, Segment

_PAIRS = {"g", "pc", "mrk"}
_HALVES = {
    "bpt": lambda a: (Kind.OPEN, a.get("rid", a.get("id", ""))),
    "ept": lambda a: (Kind.CLOSE, a.get("rid", a.get("id", ""))),
    "bx": lambda a: (Kind.OPEN, a.get("rid", a.get("id", ""))),
    "ex": lambda a: (Kind.CLOSE, a.get("rid", a.get("id", ""))),
    "sc": lambda a: (Kind.OPEN, a.get("id", "")),
    "ec": lambda a: (Kind.CLOSE, a.get("startRef", a.get("id", ""))),
}


def read_xliff(content: bytes, options: Options) -> Document:
    source = xml_source(content)
    tokens = scan(source.text, is_html=False)
    ends = token_pairs(tokens)
    if not any(local(token.name) == "xliff" for token in tokens[:20]):
        raise UserError("the document is not XLIFF: it has no xliff element")
    slots: list[Slot] = []
    opened: list[tuple[str, bool]] = [("", True)]  # elements around, and whether their text is translated
    for index, token in enumerate(tokens):
        if token.kind == "close":
            opened.pop()
        elif token.kind == "open":
            if local(token.name) == "source" and opened[-1][0] in ("trans-unit", "segment") and opened[-1][1]:
                slots += _slot(tokens, ends, index)
            opened.append((local(token.name), is_translated(token, opened[-1][1], ())))
    return SlicedDocument(source, slots)


def _slot(tokens: Sequence[Token], ends: Mapping[int, int], start: int) -> list[Slot]:
    """Return the slot for the target of the source element at `start`, if it needs a translation."""
    name = re.sub("source$", "target", tokens[start].name)
    end = insertion = ends[start]
    segment = inline_xml(tokens[start + 1 : end], _PAIRS, _HALVES)
    index = end + 1
    while tokens[index].kind != "close":
        token, last = tokens[index], ends.get(index, index)
        if local(token.name) == "seg-source":
            insertion = last
        if local(token.name) == "target":
            opening = re.sub(r"\s*/>$", ">", token.raw)
            is_new = token.attributes.get("state") in ("new", "needs-translation")
            content = "".join(inner.raw for inner in tokens[index + 1 : last])
            return (
                [_target(token.start, tokens[last].end, segment, opening, name)]
                if is_new or not content.strip()
                else []
            )
        index = last + 1
    before = tokens[start - 1]
    indent = before.raw if before.kind == "text" and not before.raw.strip() else ""
    at = tokens[insertion].end
    return [_target(at, at, segment, f"{indent}<{name}>", name)]


def _target(start: int, end: int, segment: Segment, opening: str, name: str) -> Slot:
    return Slot(
        start, end, segment, lambda new, raws: f"{opening}{render_xml(new, raws=raws)}</{name}>", is_target=True
    )
