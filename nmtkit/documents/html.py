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
    return SlicedDocument(source, [*_slots(scan(source.text), options.kept | KEPT)])


def _slots(tokens: Sequence[Token], kept: frozenset[str]) -> Iterator[Slot]:
    ends = token_pairs(tokens)
    states = [True]  # whether text is translated, for each open block
    pre = 0
    run: list[Token] = []
    skip_to = 0
    for index, token in enumerate(tokens):
        if index < skip_to:
            continue
        is_comment = token.raw.startswith("<!--")
        if index in ends and token.name in _INLINE & kept and token.kind == "open":
            skip_to = ends[index] + 1  # regardless of the content
            run += tokens[index:skip_to]
        elif token.kind == "text" and pre:  # each line of preformatted text is a segment
            start = token.start
            for piece in re.split(r"(\s*\n\s*)", token.raw):
                if "\n" in piece:
                    yield from _segment(run, kept, states[-1])
                    run.clear()
                elif piece:
                    run.append(Token("text", start, start + len(piece), piece))
                start += len(piece)
        elif token.kind == "text" or token.name in _INLINE or (is_comment and run):
            run.append(token)
        else:
            yield from _segment(run, kept, states[-1])
            run.clear()
            if index in ends and token.kind == "open":
                states.append(is_translated(token, states[-1], kept))
            elif index in ends:
                states.pop()
            pre += (token.name == "pre" and index in ends) * (1 if token.kind == "open" else -1)
            yield from _attributes(token, states[-1])
    yield from _segment(run, kept, states[-1])


def _segment(run: Sequence[Token], kept: frozenset[str], translated: bool) -> Iterator[Slot]:
    """Yield the slots of the text and the attributes in a run of inline tokens."""
    if run:
        segment = inline(run, kept=kept, translated=translated)
        first, last = run[0], run[-1]
        start = first.end - len(first.raw.lstrip(WHITE_SPACE)) if first.kind == "text" else first.start
        end = last.start + len(last.raw.rstrip(WHITE_SPACE)) if last.kind == "text" else last.end
        yield Slot(start, end, segment, _render)
        offsets = {part.offset for part in segment.parts if isinstance(part, Tag) and not part.text}
        for token in run:
            if token.start in offsets:
                yield from _attributes(token, is_translated(token, translated, kept))


def _attributes(token: Token, translated: bool) -> Iterator[Slot]:
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
            yield Slot(*span, Segment((" ".join(unescape(raw).split()),)), lambda new: escape(new.plain))


def _render(segment: Segment) -> str:
    return render(segment).strip(WHITE_SPACE)
