"""Word documents: paragraphs, in which adjacent runs of equal formatting are joined and usual formatting is omitted.

A run whose formatting differs from most of its paragraph becomes a pair. Hyperlinks, insertions, fields, bookmarks and
ranges of comments are pairs; tabs, breaks, images, references of notes and deleted text are standalone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import read_xml
from nmtkit.documents.zipped import ZippedDocument
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, elements, escape, names, raw, text_of
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced

#: A part of a paragraph, or the parts of an element in it; the formatting of its run.
Item: TypeAlias = tuple[Part | list[Part], str]

_MEMBERS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_CONTAINERS = names("w:hyperlink w:ins w:moveTo w:smartTag w:fldSimple w:customXml w:dir w:bdo w:sdtContent")
_RANGES = {
    "w:bookmarkStart": (Kind.OPEN, "bookmark"),
    "w:bookmarkEnd": (Kind.CLOSE, "bookmark"),
    "w:commentRangeStart": (Kind.OPEN, "comment"),
    "w:commentRangeEnd": (Kind.CLOSE, "comment"),
}
_FIELD = {"begin": (Kind.OPEN, "field"), "end": (Kind.CLOSE, "field")}
_SPACES = {"w:tab", "w:br", "w:cr", "w:ptab"}
_DROPPED = {"w:proofErr", "w:lastRenderedPageBreak", "w:rPr"}  # rPr is repeated
_NO_FORMAT = re.compile(r"<w:(?:lang|noProof)\b[^>]*/>|<w:rPr>\s*</w:rPr>|<w:rPr/>")


def read_docx(content: bytes, options: Options) -> Document:
    return ZippedDocument(content, "word/document.xml", _read_member)


def _read_member(name: str, data: bytes) -> Document | None:
    if not _MEMBERS.fullmatch(name):
        return None
    source, tokens, ends = read_xml(data)
    if "xmlns:w=" not in source.text:
        raise UserError("the document does not use Word's usual namespace prefix: save it with Word or LibreOffice")
    slots: list[Slot] = []
    for index, token in enumerate(tokens):
        if token.kind == "open" and token.name == "w:p":  # even in a text box of a paragraph
            slots += _slots(tokens[index + 1 : ends[index]])
    return SlicedDocument(source, slots)


def _slots(paragraph: Sequence[Token]) -> Iterator[Slot]:
    """Yield the slots of a paragraph. An element that contains paragraphs (a text box) separates segments."""
    run: list[Token] = []
    for element in [*elements(paragraph), None]:
        if element and element.first.name != "w:pPr" and all(token.name != "w:p" for token in element.inside):
            run += element.tokens
            continue
        if any(token.name == "w:t" for token in run):
            parts, base = _container(run)
            yield Slot(run[0].start, run[-1].end, balanced(parts), partial(_render, base=base))
        run = []


def _container(tokens: Sequence[Token]) -> tuple[list[Part], str]:
    """Return the parts of a paragraph or of an element in it, and the formatting of most of its text."""
    items: list[Item] = []
    for element in elements(tokens):
        name = element.first.name
        inner = next((e for e in elements(element.inside) if e.first.name == "w:sdtContent"), element)
        if name == "w:r":
            items += _run(element.inside)
        elif inner.first.kind == "open" and inner.first.name in _CONTAINERS:
            parts, style = _container(inner.inside)
            opening = raw([token for token in element.tokens if token.start <= inner.first.start])
            closing = raw([token for token in element.tokens if token.start >= inner.last.start])
            key = f"{element.first.start}"
            items.append(([Tag(Kind.OPEN, opening, key, style=style), *parts, Tag(Kind.CLOSE, closing, key)], ""))
        elif name in _RANGES:
            kind, key = _RANGES[name]
            items.append((Tag(kind, element.raw, key + element.first.attributes.get("w:id", "")), ""))
        elif name not in _DROPPED and element.raw.strip():
            items.append((Tag(Kind.ALONE, element.raw), ""))
    return _formatted(items)


def _run(tokens: Sequence[Token]) -> Iterator[Item]:
    """Yield the parts of a run. The code of a field belongs to its opening tag."""
    style = ""
    for element in elements(tokens):
        name = element.first.name
        if name == "w:rPr":
            style = _NO_FORMAT.sub("", _NO_FORMAT.sub("", element.raw))
        elif name == "w:t":
            if text := "".join(text_of(token, is_html=False) for token in element.inside):
                yield text, style
        elif name not in _DROPPED and element.raw.strip():
            kind, key = Kind.ALONE, ""
            if name == "w:fldChar":
                type = element.first.attributes.get("w:fldCharType", "")
                kind, key = _FIELD.get(type, (Kind.ALONE, type))
            space = " " if name in _SPACES else ""
            yield Tag(kind, f"<w:r>{style}{element.raw}</w:r>", key, space), style


def _formatted(items: Sequence[Item]) -> tuple[list[Part], str]:
    """Return the parts of runs and their usual formatting. Text in other formatting is in pairs; fields are tags."""
    weights: Counter[str] = Counter()
    for part, style in items:
        weights[style] += len(part) if isinstance(part, str) else 0
    base = current = max(weights, key=lambda style: weights[style], default="")
    parts: list[Part] = []
    for part, style in [*_with_codes(items), ("", base)]:
        is_alone = isinstance(part, Tag) and part.kind is Kind.ALONE
        wanted = style if isinstance(part, str) else current if is_alone else base
        if wanted != current:
            parts += [Tag(Kind.CLOSE, "", "format")] if current != base else []
            parts += [Tag(Kind.OPEN, "", "format", style=wanted)] if wanted != base else []
            current = wanted
        parts += part if isinstance(part, list) else [part]
    return parts, base


def _with_codes(items: Iterable[Item]) -> Iterator[Item]:
    """Join the code of each field, up to its separator, to an opening tag; without a separator, to a standalone tag."""
    code, level = "", 0  # and how many fields are open in it
    for part, style in items:
        field = part if isinstance(part, Tag) and part.name in ("field", "separate") else None
        level += field is not None and field.kind is Kind.OPEN
        if not level:
            yield part, style
            continue
        code += "".join(_raw(inner, style) for inner in (part if isinstance(part, list) else [part]))
        level -= field is not None and field.kind is Kind.CLOSE
        if level == 0 or (level == 1 and field and field.name == "separate"):
            yield [Tag(Kind.OPEN if level else Kind.ALONE, code, "field")], ""
            code, level = "", 0
    if code:  # of a field that ends in a later paragraph
        yield [Tag(Kind.ALONE, code)], ""


def _render(segment: Segment, base: str) -> str:
    """Render the texts of a segment as runs, each with the formatting of the pair around it."""
    styles, result = [base], []
    for part in segment.parts:
        result.append(_raw(part, styles[-1]))
        if isinstance(part, Tag) and part.kind is Kind.OPEN:
            has_style = part.name == "format" or part.name.isdigit()
            styles.append(part.style if has_style else styles[-1])
        elif isinstance(part, Tag) and part.kind is Kind.CLOSE:
            styles.pop()
    return "".join(result)


def _raw(part: Part, style: str) -> str:
    if isinstance(part, Tag):
        return part.raw
    return f'<w:r>{style}<w:t xml:space="preserve">{escape(part, is_html=False)}</w:t></w:r>'
