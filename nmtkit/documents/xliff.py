"""XLIFF 1.2 and 2.0: translates sources whose targets are missing, empty or marked as new."""

import re
from collections.abc import Iterator, Sequence

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import indent, inline_xml, local, read_xml, target_slot
from nmtkit.text.markup import Token, elements, is_translated
from nmtkit.text.segment import Kind

_NEW = ("new", "needs-translation")  # states of targets
_PAIRS = {"g", "pc", "mrk"}
_HALVES = {
    **dict.fromkeys(("bpt", "bx"), (Kind.OPEN, "rid")),
    **dict.fromkeys(("ept", "ex"), (Kind.CLOSE, "rid")),
    "sc": (Kind.OPEN, "id"),
    "ec": (Kind.CLOSE, "startRef"),
}


def read_xliff(content: bytes, options: Options) -> Document:
    source, tokens, ends = read_xml(content, "xliff")
    slots: list[Slot] = []
    translated = [True]  # whether text is translated, in the elements around
    for index, token in enumerate(tokens):
        if token.kind == "close":
            translated.pop()
        elif token.kind == "open":
            translated.append(is_translated(token, translated[-1], ()))
            if local(token.name) in ("trans-unit", "segment") and translated[-1]:
                slots += _slots(tokens[index + 1 : ends[index]])
    return SlicedDocument(source, slots)


def _slots(unit: Sequence[Token]) -> Iterator[Slot]:
    """Yield the slot for the target of a unit, if it needs a translation."""
    parts = {local(element.first.name): element for element in elements(unit)}
    source, target = parts.get("source"), parts.get("target")
    is_done = target and target.content.strip() and target.first.attributes.get("state") not in _NEW
    if not source or is_done:
        return
    segment = inline_xml(source.inside, _PAIRS, _HALVES)
    name = re.sub("source$", "target", source.first.name)
    if target:
        opening = re.sub(r"\s*/>$", ">", target.first.raw)
        yield target_slot(target.first.start, target.last.end, segment, opening, f"</{name}>")
    else:
        at = parts.get("seg-source", source).last.end
        yield target_slot(at, at, segment, f"{indent(unit)}<{name}>", f"</{name}>")
