"""XML documents: must be well-formed and declare no entities. Inline elements become tags."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from xml.parsers import expat

from nmtkit.documents.document import Slot, Source, text_source
from nmtkit.errors import UserError
from nmtkit.text.markup import Element, Token, inline, render, scan, token_pairs
from nmtkit.text.segment import Kind, Segment, Tag

#: For an element that is half of a pair: the kind of its tag, and the attribute with its name instead of `id`.
Halves = Mapping[str, tuple[Kind, str]]

_ENCODING = re.compile(rb"""^<\?xml[^>]*?encoding\s*=\s*["']([\w.-]+)["']""")
_SPACES = {"s", "tab", "line-break"}  # of OpenDocument
render_xml = partial(render, is_html=False)


def read_xml(content: bytes, root: str = "") -> tuple[Source, list[Token], dict[int, int]]:
    """Decode XML. Returns its text, its tokens, and the pairs of tags by index, as `token_pairs`.

    Raises UserError if it is not well-formed, declares an entity, or lacks the element `root`.
    """
    source = text_source(content, _ENCODING, errors="xmlcharrefreplace")
    parser = expat.ParserCreate("utf-8")
    parser.EntityDeclHandler = _reject_entity
    try:
        parser.Parse(source.text.encode(), True)
    except expat.ExpatError as error:
        raise UserError(f"the document is not well-formed XML: {error}") from None
    tokens = scan(source.text, is_html=False)
    if root and not any(local(token.name) == root for token in tokens[:20]):
        raise UserError(f"the document is not {root.upper()}: it has no {root} element")
    return source, tokens, token_pairs(tokens)


def _reject_entity(name: str, *_: object) -> None:
    raise UserError(f"the document declares the entity {name!r}: remove its document type declaration")


def local(name: str) -> str:
    """Return the name of an element without its prefix."""
    return name.rpartition(":")[2]


def inline_xml(tokens: Sequence[Token], paired: Collection[str], halves: Halves, collapsed: bool = False) -> Segment:
    """Create a segment from tokens. Elements in `paired` become pairs, in `halves` ends of pairs, others standalone."""

    def as_tag(element: Element) -> Tag | None:
        token, name = element.first, local(element.first.name)
        if token.kind == "open" and name in paired:
            return None
        kind, key = halves.get(name, (Kind.ALONE, ""))
        if name in halves:
            key = token.attributes.get(key, token.attributes.get("id", ""))
        return Tag(kind, element.raw, key, " " if name in _SPACES else "", offset=token.start)

    segment = inline(tokens, collapsed, (), as_tag=as_tag)
    is_movable = all(token.attributes.get("canReorder", "yes") == "yes" for token in tokens if token.name)
    return Segment(segment.parts, segment.movable and is_movable)


def target_slot(start: int, end: int, segment: Segment, before: str, after: str) -> Slot:
    """Create the slot of a target in a bilingual document, with the markup before and after its text."""
    return Slot(start, end, segment, lambda new: f"{before}{render_xml(new)}{after}", is_target=True)


def indent(tokens: Sequence[Token]) -> str:
    """Return the white space before the first of the elements in tokens."""
    return tokens[0].raw if not tokens[0].raw.strip() else ""
