"""HTML: text between block elements, and attributes that readers see."""

import re
from collections.abc import Iterator, Sequence
from html import escape, unescape

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, Source, text_source
from nmtkit.text.markup import KEPT, Token, inline, is_translated, names, render, scan, token_pairs
from nmtkit.text.segment import WHITE_SPACE, Segment, Tag

_CHARSET = re.compile(rb"""<meta[^>]+?charset\s*=\s*["']?([\w.-]+)""", re.IGNORECASE)
_INLINE = (KEPT - {"address", "script", "style"}) | names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i img input ins kbd label mark meter nobr output picture"
    " progress q rb rp rt rtc ruby s samp small source span strike strong sub sup tt u var wbr"
)
_ATTRIBUTES = ("alt", "aria-label", "placeholder", "title")
_META = {"description", "og:description", "og:title", "twitter:description", "twitter:title"}


def read_html(content: bytes, options: Options) -> Document:
    return html_document(text_source(content, _CHARSET, errors="xmlcharrefreplace"), options)


def html_document(source: Source, options: Options) -> SlicedDocument:
    reader = _Reader(scan(source.text), options.kept | KEPT)
    return SlicedDocument(source, [*reader.slots()])


class _Reader:
    def __init__(self, tokens: Sequence[Token], kept: frozenset[str]) -> None:
        self.tokens = tokens
        self.kept = kept

    def slots(self) -> Iterator[Slot]:
        ends = token_pairs(self.tokens)
        states = [True]  # whether text is translated, for each open block
        pre = 0
        run: list[Token] = []
        skip_to = 0
        for index, token in enumerate(self.tokens):
            if index < skip_to:
                continue
            is_comment = token.raw.startswith("<!--")
            if index in ends and token.name in _INLINE & self.kept and token.kind == "open":
                skip_to = ends[index] + 1  # regardless of the content
                run += self.tokens[index:skip_to]
            elif token.kind == "text" and pre:  # each line of preformatted text is a segment
                yield from self.lines(run, token, states[-1])
            elif token.kind == "text" or token.name in _INLINE or (is_comment and run):
                run.append(token)
            else:
                yield from self.segment(run, states[-1])
                run.clear()
                if index in ends and token.kind == "open":
                    states.append(is_translated(token, states[-1], self.kept))
                elif index in ends:
                    states.pop()
                pre += (token.name == "pre" and index in ends) * (1 if token.kind == "open" else -1)
                if token.kind in ("open", "empty"):
                    yield from self.attributes(token, states[-1])
        yield from self.segment(run, states[-1])

    def lines(self, run: list[Token], token: Token, translated: bool) -> Iterator[Slot]:
        start = token.start
        for piece in re.split(r"(\s*\n\s*)", token.raw):
            if "\n" in piece:
                yield from self.segment(run, translated)
                run.clear()
            elif piece:
                run.append(Token("text", start, start + len(piece), piece))
            start += len(piece)

    def segment(self, run: Sequence[Token], translated: bool) -> Iterator[Slot]:
        if run:
            segment = inline(run, kept=self.kept, translated=translated)
            first, last = run[0], run[-1]
            start = first.end - len(first.raw.lstrip(WHITE_SPACE)) if first.kind == "text" else first.start
            end = last.start + len(last.raw.rstrip(WHITE_SPACE)) if last.kind == "text" else last.end
            yield Slot(start, end, segment, _render)
            offsets = {part.offset for part in segment.parts if isinstance(part, Tag) and not part.text}
            for token in run:
                if token.start in offsets:
                    yield from self.attributes(token, is_translated(token, translated, self.kept))

    def attributes(self, token: Token, translated: bool) -> Iterator[Slot]:
        if not translated or token.kind not in ("open", "empty"):
            return
        attributes = {name.lower(): value for name, value in token.attributes.items()}
        visible = [*_ATTRIBUTES]
        if token.name == "meta" and attributes.get("name", attributes.get("property", "")).lower() in _META:
            visible = ["content"]
        if token.name == "input" and attributes.get("type", "").lower() in ("button", "reset", "submit"):
            visible.append("value")
        for name in visible:
            if span := token.value_span(name):
                raw = token.raw[span[0] - token.start : span[1] - token.start]
                yield Slot(*span, Segment((" ".join(unescape(raw).split()),)), _render_attribute)


def _render(segment: Segment) -> str:
    return render(segment).strip(WHITE_SPACE)


def _render_attribute(segment: Segment) -> str:
    return escape(segment.plain)
