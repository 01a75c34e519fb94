"""TMX: translates units without text in the target language."""

from collections.abc import Mapping
from html import escape

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import inline_xml, render_xml, xml_source
from nmtkit.errors import UserError
from nmtkit.text.languages import short_code
from nmtkit.text.markup import Token, scan, token_pairs
from nmtkit.text.segment import Kind, Segment

_HALVES = {"bpt": lambda a: (Kind.OPEN, a.get("i", "")), "ept": lambda a: (Kind.CLOSE, a.get("i", ""))}


def read_tmx(content: bytes, options: Options) -> Document:
    if not options.target_language:
        raise UserError("a TMX document needs the target language of the translation")
    source = xml_source(content)
    tokens = scan(source.text, is_html=False)
    ends = token_pairs(tokens)
    if not any(token.name == "tmx" for token in tokens[:20]):
        raise UserError("the document is not TMX: it has no tmx element")
    language = next((token.attributes.get("srclang", "") for token in tokens if token.name == "header"), "")
    slots: list[Slot] = []
    for index, token in enumerate(tokens):
        if token.name == "tu" and token.kind == "open":
            unit = tokens[index + 1 : ends[index]]
            slots += _slots(unit, token.attributes.get("srclang", language), options.target_language)
    return SlicedDocument(source, slots)


def _slots(unit: list[Token], language: str, target: str) -> list[Slot]:
    """Return the slot for the target of a unit: an empty seg, or a new tuv after the source's tuv."""
    ends = token_pairs(unit)
    variants = {}
    for index, token in enumerate(unit):
        if token.name == "tuv" and token.kind == "open":
            seg = next((i for i in range(index, ends[index]) if unit[i].name == "seg"), None)
            if seg is not None:
                attributes = token.attributes
                variants[attributes.get("xml:lang", attributes.get("lang", "")).lower()] = index, seg
    found = next((variants.pop(name) for name in list(variants) if short_code(name) == short_code(target)), None)
    exact = language.lower() if language.lower() in variants else next(iter(variants), None)
    if exact is None:
        return []
    index, seg = variants[exact]
    segment = inline_xml(unit[seg + 1 : ends.get(seg, seg)], {"hi"}, _HALVES)
    if not found:
        before = unit[index - 1].raw if index and unit[index - 1].kind == "text" else ""
        at = unit[ends[index]].end
        return [_seg(at, at, segment, f'{before}<tuv xml:lang="{escape(target)}">', "</tuv>")]
    start, end = unit[found[1]], unit[ends.get(found[1], found[1])]
    is_empty = not "".join(token.raw for token in unit[found[1] + 1 : ends.get(found[1], found[1])]).strip()
    return [_seg(start.start, end.end, segment, "", "")] if is_empty else []


def _seg(start: int, end: int, segment: Segment, before: str, after: str) -> Slot:
    def write(new: Segment, raws: Mapping[int, str]) -> str:
        return f"{before}<seg>{render_xml(new, raws=raws)}</seg>{after}"

    return Slot(start, end, segment, write, is_target=True)
