"""XML documents: must be well-formed and declare no entities. Inline elements become tags."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from xml.parsers import expat

from nmtkit.documents.document import Slot, Source, text_source
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, is_translated, render, scan, text_of, token_pairs
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced

#: The kind and the name of the tag for an element that is half of a pair, given its attributes.
Halves = Mapping[str, Callable[[dict[str, str]], tuple[Kind, str]]]

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


@dataclass(frozen=True)
class Element:
    """An element with the tokens inside; or a text, a comment or an empty element, which is a single token."""

    first: Token
    inside: Sequence[Token]
    last: Token

    @property
    def name(self) -> str:
        """The name without the prefix; empty for a text or a comment."""
        return local(self.first.name)

    @property
    def tokens(self) -> list[Token]:
        return [self.first, *self.inside, self.last] if self.last is not self.first else [self.first]

    @property
    def raw(self) -> str:
        return raw(self.tokens)

    @property
    def content(self) -> str:
        return raw(self.inside)


def raw(tokens: Sequence[Token]) -> str:
    """Return the source of tokens."""
    return "".join(token.raw for token in tokens)


def elements(tokens: Sequence[Token]) -> Iterator[Element]:
    """Yield the outermost elements, texts and comments of tokens in which all pairs are complete."""
    ends, index = token_pairs(tokens), 0
    while index < len(tokens):
        last = ends.get(index, index)
        yield Element(tokens[index], tokens[index + 1 : last], tokens[last])
        index = last + 1


def inline_xml(tokens: Sequence[Token], paired: Collection[str], halves: Halves, collapsed: bool = False) -> Segment:
    """Create a segment from tokens. Elements in `paired` become pairs, in `halves` ends of pairs, others standalone."""
    movable = all(token.attributes.get("canReorder", "yes") == "yes" for token in tokens if token.name)
    return balanced(_parts(tokens, paired, halves, collapsed), movable)


def _parts(tokens: Sequence[Token], paired: Collection[str], halves: Halves, collapsed: bool) -> Iterator[Part]:
    for element in elements(tokens):
        token, name = element.first, element.name
        attributes = token.attributes if name else {}
        if token.kind == "text" or token.raw.startswith("<![CDATA["):
            text = text_of(token, is_html=False)
            yield re.sub(r"[ \t\r\n]+", " ", text) if collapsed else text
        elif token.kind != "open" or name not in paired:
            kind, key = halves[name](attributes) if name in halves else (Kind.ALONE, "")
            yield Tag(kind, element.raw, key, " " if name in _SPACES else "", offset=token.start)
        elif not is_translated(token, True, ()) or attributes.get("mtype") == "protected":
            text = "".join(text_of(inner, is_html=False) for inner in element.inside if inner.kind == "text")
            yield Tag(Kind.ALONE, element.raw, text=text, offset=token.start)
        else:
            yield Tag(Kind.OPEN, token.raw, token.name, offset=token.start)
            yield from _parts(element.inside, paired, halves, collapsed)
            yield Tag(Kind.CLOSE, element.last.raw, token.name)


def target_slot(start: int, end: int, segment: Segment, before: str, after: str) -> Slot:
    """Create the slot of a target in a bilingual document, with the markup before and after its text."""
    return Slot(start, end, segment, lambda new: f"{before}{render_xml(new)}{after}", is_target=True)


def indent(tokens: Sequence[Token]) -> str:
    """Return the white space before the first of the elements in tokens."""
    return tokens[0].raw if not tokens[0].raw.strip() else ""
