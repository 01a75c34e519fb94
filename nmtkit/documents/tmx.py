"""TMX: translates units without text in the target language."""

from collections.abc import Iterator, Sequence
from html import escape

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import indent, inline_xml, read_xml, target_slot
from nmtkit.errors import UserError
from nmtkit.text.languages import short_code
from nmtkit.text.markup import Token, elements
from nmtkit.text.segment import Kind

_HALVES = {"bpt": (Kind.OPEN, "i"), "ept": (Kind.CLOSE, "i")}


def read_tmx(content: bytes, options: Options) -> Document:
    if not options.target_language:
        raise UserError("a TMX document needs the target language of the translation")
    source, tokens, ends = read_xml(content, "tmx")
    language = next((token.attributes.get("srclang", "") for token in tokens if token.name == "header"), "")
    slots: list[Slot] = []
    for index, token in enumerate(tokens):
        if token.name == "tu" and token.kind == "open":
            unit = tokens[index + 1 : ends[index]]
            slots += _slots(unit, token.attributes.get("srclang", language), options.target_language)
    return SlicedDocument(source, slots)


def _slots(unit: Sequence[Token], language: str, target: str) -> Iterator[Slot]:
    """Yield the slot for the target of a unit: an empty seg, or a new tuv after the source's tuv."""
    variants = {}
    for variant in elements(unit):
        attributes = variant.first.attributes if variant.first.name == "tuv" else {}
        for seg in (element for element in elements(variant.inside) if element.first.name == "seg"):
            variants[attributes.get("xml:lang", attributes.get("lang", "")).lower()] = variant, seg
    found = next((variants.pop(name) for name in list(variants) if short_code(name) == short_code(target)), None)
    original = variants.get(language.lower()) or next(iter(variants.values()), None)
    if not original or (found and found[1].content.strip()):
        return
    segment = inline_xml(original[1].inside, {"hi"}, _HALVES)
    if found:
        yield target_slot(found[1].first.start, found[1].last.end, segment, "<seg>", "</seg>")
    else:
        before = f'{indent(unit)}<tuv xml:lang="{escape(target)}"><seg>'
        yield target_slot(original[0].last.end, original[0].last.end, segment, before, "</seg></tuv>")
