"""HTML and XML in text: tags and their positions, segments of inline markup, entities, and untranslated content."""

import html
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from nmtkit.errors import UserError
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced, pairs


def names(text: str) -> frozenset[str]:
    """Return the set of the space-separated words of a text."""
    return frozenset(text.split())


#: Elements of HTML whose text is kept: those of LibreTranslate, and drawings and formulas.
KEPT = names("address applet audio canvas code embed math object script style svg time video")
_VOID = names("area base br col embed hr img input link meta param source track wbr")
_RAW = names("iframe noembed noframes script style textarea title xmp")  # no tags inside
_ESCAPED = names("textarea title")  # of these, the text has entities

_TAG = re.compile(  # linear in time: a quotation mark opens a value only after an equals sign
    r"""<(/?)([^\W\d][^\s/>]*)[^>=]*(?:=\s*(?:"[^"]*"|'[^']*'|(?!["'\s]))[^>=]*)*>"""
)
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_DOCTYPE = re.compile(r"<!doctype[^\[>]*(?:\[[^\]]*\]\s*)?>", re.IGNORECASE)
_DELIMITED = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">"))
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # no character of XML


_KINDS = {"open": Kind.OPEN, "close": Kind.CLOSE}


@dataclass(frozen=True)
class Token:
    """A piece of markup: a text, a tag, a comment, a declaration, CDATA, or the content of a script."""

    kind: str  # text, open, close, empty, other
    start: int
    end: int
    raw: str
    name: str = ""

    def _attributes(self) -> Iterator[re.Match[str]]:
        return _ATTRIBUTE.finditer(self.raw, self.raw.find(self.name) + len(self.name))

    @property
    def attributes(self) -> dict[str, str]:
        return {match[1]: html.unescape(match[2] or match[3] or match[4] or "") for match in self._attributes()}

    def value_span(self, attribute: str) -> tuple[int, int] | None:
        """Return the span in the file of the quoted value of an attribute; None if it is missing."""
        for match in self._attributes():
            if match[1].lower() == attribute and match.lastindex in (2, 3):
                start, end = match.span(match.lastindex)
                return self.start + start, self.start + end
        return None


def scan(source: str, is_html: bool = True) -> list[Token]:
    """Split a text in HTML or XML (`is_html`) into tokens whose concatenation is the text."""
    tokens: list[Token] = []

    def add(kind: str, start: int, end: int, name: str = "") -> None:
        if start < end:
            tokens.append(Token(kind, start, end, source[start:end], name))

    text = at = 0  # where the text begins, where to look for a tag
    while (at := source.find("<", at)) >= 0:
        if source.startswith(("<!", "<?"), at):
            end = _end_of_other(source, at, is_html)
            add("text", text, at)
            add("other", at, end)
        elif match := _TAG.match(source, at):
            name, end = match[2].lower() if is_html else match[2], match.end()
            is_empty = source[end - 2] == "/" or (is_html and name in _VOID)
            kind = "close" if match[1] else "empty" if is_empty else "open"
            add("text", text, at)
            add(kind, at, end, name)
            if is_html and kind == "open" and name in _RAW:
                closing = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, end)
                content, end = end, closing.start() if closing else len(source)
                add("text" if name in _ESCAPED else "other", content, end)
        elif re.compile(r"</?[^\W\d]").match(source, at):
            break  # a tag without an end
        else:
            at += 1
            continue
        text = at = end
    add("text", text, len(source))
    return tokens


def _end_of_other(source: str, start: int, is_html: bool) -> int:
    if match := _DOCTYPE.match(source, start):
        return match.end()
    opening, closing = next(marks for marks in _DELIMITED if source.startswith(marks[0], start))
    end = source.find(closing, start + len(opening))
    return end + len(closing) if end >= 0 else len(source)


def token_pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Match opening and closing tags: map the index of each to the index of its counterpart."""
    return pairs([(_KINDS.get(token.kind, Kind.ALONE), token.name) for token in tokens])


@dataclass(frozen=True)
class Element:
    """An element with the tokens inside; or a text, a comment or an empty element, which is a single token."""

    first: Token
    inside: Sequence[Token]
    last: Token

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


def is_translated(token: Token, default: bool, kept: Collection[str] = KEPT) -> bool:
    """Whether to translate an element. Attributes translate and class decide, or else `default` and `kept` names."""
    attributes = {name.lower(): value for name, value in token.attributes.items()}
    classes = attributes.get("class", "").split()
    if "translate" in attributes:
        return attributes["translate"].lower() != "no"
    if "notranslate" in classes:
        return False
    is_protected = attributes.get("mtype") == "protected"  # in XLIFF
    return "translate" in classes or (default and token.name not in kept and not is_protected)


def inline(
    tokens: Sequence[Token],
    is_html: bool = True,
    kept: Collection[str] = KEPT,
    translated: bool = True,
    as_tag: Callable[[Element], Tag | None] = lambda element: None,
) -> Segment:
    """Create a segment from tokens of text and inline tags. Content that is not translated becomes protected spans.

    `as_tag` may return a tag for an element or a single token that is not text. Raises UserError for about a thousand
    nested elements.
    """

    def parts(tokens: Sequence[Token], translated: bool) -> Iterator[Part]:
        for element in elements(tokens):
            token = element.first
            if token.kind == "text" or token.raw.startswith("<![CDATA["):
                text = text_of(token, is_html)
                yield text if translated or not text.strip() else Tag(Kind.ALONE, token.raw, text=text)
            elif tag := as_tag(element):
                yield tag
            elif element.last is token:
                yield Tag(_KINDS.get(token.kind, Kind.ALONE), token.raw, token.name, offset=token.start)
            else:
                has_text = is_translated(token, translated, kept)
                if has_text or any(inner.kind == "open" and is_translated(inner, False) for inner in element.inside):
                    yield Tag(Kind.OPEN, token.raw, token.name, offset=token.start)
                    yield from parts(element.inside, has_text)
                    yield Tag(Kind.CLOSE, element.last.raw, token.name)
                else:
                    text = "".join(text_of(inner, is_html) for inner in element.inside if inner.kind == "text")
                    yield Tag(Kind.ALONE, element.raw, text=text, offset=token.start)

    try:
        return balanced(parts(tokens, translated))
    except RecursionError:
        raise UserError("the text has too many elements inside each other: simplify it") from None


def text_of(token: Token, is_html: bool) -> str:
    """Return the text of a token. White space of HTML is collapsed, as in browsers."""
    if token.raw.startswith("<![CDATA["):
        return token.raw[9:-3]
    return html.unescape(re.sub("[ \t\r\n\f]+", " ", token.raw) if is_html else token.raw)


def escape(text: str, is_html: bool = True) -> str:
    """Escape a text for HTML or XML. HTML gets &nbsp; for no-break spaces; XML loses characters that it forbids."""
    escaped = html.escape(_CONTROLS.sub("", text), quote=False)
    return escaped.replace("\xa0", "&nbsp;") if is_html else escaped


def render(segment: Segment, is_html: bool = True) -> str:
    """Return the markup of a segment."""
    return "".join(escape(part, is_html) if isinstance(part, str) else part.raw for part in segment.parts)


def parse(tagged: str, is_html: bool = True, kept: Collection[str] = KEPT) -> Segment:
    """Parse a line of HTML or XML to a segment."""
    return inline(scan(tagged, is_html), is_html, kept)
