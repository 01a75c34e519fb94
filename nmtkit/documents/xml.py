"""XML documents: must be well-formed and declare no entities. Inline elements become tags."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from xml.parsers import expat

from nmtkit.documents.document import Document, SlicedDocument, Slot, Source, text_source
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, is_translated, render, scan, text_of, token_pairs
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced

_ENCODING = re.compile(rb"""^<\?xml[^>]*?encoding\s*=\s*["']([\w.-]+)["']""")
_MAX_DEPTH = 256
_SPACES = {"s", "tab", "line-break"}  # of OpenDocument
render_xml = partial(render, is_html=False)


def xml_source(content: bytes) -> Source:
    """Decode XML. Raises UserError if it is not well-formed or declares an entity."""
    source = text_source(content, _ENCODING, errors="xmlcharrefreplace")
    parser = expat.ParserCreate("utf-8")
    parser.EntityDeclHandler = _reject_entity
    depth = 0

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise UserError(f"the document has elements nested more than {_MAX_DEPTH} deep")

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = enter, leave
    try:
        parser.Parse(source.text.encode(), True)
    except expat.ExpatError as error:
        raise UserError(f"the document is not well-formed XML: {error}") from None
    return source


def _reject_entity(name: str, *_: object) -> None:
    raise UserError(f"the document declares the entity {name!r}: remove its document type declaration")


def local(name: str) -> str:
    """Return the name of an element without its prefix."""
    return name.rpartition(":")[2]


def inline_xml(
    tokens: Sequence[Token],
    paired: Collection[str],
    halves: Mapping[str, Callable[[dict[str, str]], tuple[Kind, str]]],
    collapsed: bool = False,
) -> Segment:
    """Create a segment from tokens. Elements in `paired` become pairs, in `halves` ends of pairs, others standalone."""
    ends = token_pairs(tokens)
    parts: list[Part] = []
    movable = True
    index = 0
    while index < len(tokens):
        token, end = tokens[index], ends.get(index, index)
        attributes = token.attributes if token.name else {}
        movable = movable and attributes.get("canReorder", "yes") == "yes"
        if token.kind == "text" or token.raw.startswith("<![CDATA["):
            text = text_of(token, is_html=False)
            parts.append(re.sub(r"[ \t\r\n]+", " ", text) if collapsed else text)
        elif token.kind == "close":
            parts.append(Tag(Kind.CLOSE, token.raw, token.name))
        else:
            is_pair = token.kind == "open" and local(token.name) in paired
            is_kept = not is_translated(token, True, ()) or attributes.get("mtype") == "protected"
            kind, name = Kind.OPEN if is_pair else Kind.ALONE, token.name
            text = ""
            if not is_pair or is_kept:
                raw = "".join(inner.raw for inner in tokens[index : end + 1])
                text = "".join(text_of(t, False) for t in tokens[index:end] if t.kind == "text" and is_pair)
                kind, name = halves[local(name)](attributes) if local(name) in halves else (Kind.ALONE, "")
                text = " " if local(token.name) in _SPACES else text
                index = end
            else:
                raw = token.raw
            parts.append(Tag(kind, raw, name, text, offset=token.start))
        index += 1
    return balanced(parts, movable)


def paragraphs(content: bytes, names: Collection[str], skipped: Collection[str], paired: Collection[str]) -> Document:
    """Parse XML. The content of each element in `names`, even a nested one, is a segment, except within `skipped`."""
    source = xml_source(content)
    tokens = scan(source.text, is_html=False)
    ends = token_pairs(tokens)
    slots, index = [], 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "open" and token.name in skipped:
            index = ends[index]
        elif token.kind == "open" and token.name in names:
            inside = tokens[index + 1 : ends[index]]
            segment = inline_xml(inside, paired, {}, collapsed=True)
            slots.append(Slot(token.end, tokens[ends[index]].start, segment, render_slot))
        index += 1
    return SlicedDocument(source, slots)


def render_slot(segment: Segment, raws: Mapping[int, str]) -> str:
    return render_xml(segment, raws=raws)
