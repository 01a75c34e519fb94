"""Word documents: paragraphs, in which adjacent runs of equal formatting are joined and usual formatting is omitted.

A run whose formatting differs from most of its paragraph becomes a pair. Hyperlinks, insertions, fields, bookmarks and
ranges of comments are pairs; tabs, breaks, images, references of notes and deleted text are standalone.
"""

import re
from collections.abc import Iterator, Sequence

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.docx_runs import Item, formatted, render_runs
from nmtkit.documents.xml import xml_source
from nmtkit.documents.zipped import ZippedDocument
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, scan, text_of, token_pairs
from nmtkit.text.segment import Kind, Part, Tag, balanced

_MEMBERS = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_NAMESPACE = re.compile(
    r"""xmlns:(\w+)=["']http://(?:schemas\.openxmlformats|purl\.oclc)\.org/(?:ooxml/)?wordprocessingml/(?:2006/)?main["']"""
)
_CONTAINERS = {"hyperlink", "ins", "moveTo", "smartTag", "fldSimple", "customXml", "dir", "bdo"}
_RANGES = {"bookmarkStart": "bookmark", "commentRangeStart": "comment"}
_RANGE_ENDS = {"bookmarkEnd": "bookmark", "commentRangeEnd": "comment"}
_FIELD = {"begin": (Kind.OPEN, "field"), "end": (Kind.CLOSE, "field")}
_SPACES = {"tab", "br", "cr", "ptab"}
_DROPPED = {"proofErr", "lastRenderedPageBreak", "rPr"}  # rPr is repeated
_NO_FORMAT = re.compile(r"<\w+:(?:lang|noProof)\b[^>]*/>|<\w+:rPr>\s*</\w+:rPr>|<\w+:rPr/>")


def read_docx(content: bytes, options: Options) -> Document:
    document = ZippedDocument(content, lambda name, data: _read_part(data) if _MEMBERS.fullmatch(name) else None)
    document.require("word/document.xml", "docx")
    return document


def _read_part(data: bytes) -> Document:
    source = xml_source(data)
    namespace = _NAMESPACE.search(source.text)
    if not namespace:
        raise UserError("the document does not use Word's usual namespace prefix: save it with Word or LibreOffice")
    tokens = scan(source.text, is_html=False)
    return SlicedDocument(source, [*_Reader(tokens, namespace[1] + ":").slots()])


class _Reader:
    def __init__(self, tokens: Sequence[Token], prefix: str) -> None:
        self.tokens = tokens
        self.prefix = prefix
        self.ends = token_pairs(tokens)
        self.names = [t.name[len(prefix) :] if t.name.startswith(prefix) else "" for t in tokens]

    def slots(self) -> Iterator[Slot]:
        """Yield the slots of all paragraphs. An element that contains paragraphs (a text box) separates segments."""
        stack: list[tuple[int, int]] = [(0, len(self.tokens))]
        while stack:
            index, end = stack.pop()
            while index < end:
                token = self.tokens[index]
                if token.kind == "open" and self.names[index] == "p":
                    stack += [(self.ends[index] + 1, end), (index + 1, self.ends[index])]
                    yield from self.paragraph(index + 1, self.ends[index])
                    break
                index += 1

    def paragraph(self, start: int, end: int) -> Iterator[Slot]:
        segment_start, index = start, start
        while index < end:
            last = self.ends.get(index, index)
            boxed = any(name == "p" for name in self.names[index + 1 : last])
            if self.names[index] == "pPr" or boxed:
                yield from self.slot(segment_start, index)
                segment_start = last + 1
            index = last + 1
        yield from self.slot(segment_start, end)

    def slot(self, start: int, end: int) -> Iterator[Slot]:
        if any(name == "t" for name in self.names[start:end]):
            parts, base = self.container(start, end)
            segment = balanced(parts)
            first, last = self.tokens[start].start, self.tokens[end - 1].end
            yield Slot(first, last, segment, lambda new, _: render_runs(new, base, self.prefix))

    def container(self, index: int, end: int) -> tuple[list[Part], str]:
        """Return the parts of a paragraph or of an element in it, and the formatting of most of its text."""
        items: list[Item] = []
        while index < end:
            token, name, last = self.tokens[index], self.names[index], self.ends.get(index, index)
            raw = "".join(t.raw for t in self.tokens[index : last + 1])
            content = (
                next((i for i in range(index, last) if self.names[i] == "sdtContent"), None) if name == "sdt" else None
            )
            if name == "r":
                items += self.run(index + 1, last)
            elif token.kind == "open" and (name in _CONTAINERS or content is not None):
                first = index if content is None else content
                parts, style = self.container(first + 1, self.ends[first])
                opening = "".join(t.raw for t in self.tokens[index : first + 1])
                closing = "".join(t.raw for t in self.tokens[self.ends[first] : last + 1])
                tags = Tag(Kind.OPEN, opening, f"{index}", style=style), Tag(Kind.CLOSE, closing, f"{index}")
                items.append(([tags[0], *parts, tags[1]], ""))
            elif name in _RANGES or name in _RANGE_ENDS:
                kind = Kind.OPEN if name in _RANGES else Kind.CLOSE
                key = (_RANGES | _RANGE_ENDS)[name] + token.attributes.get(f"{self.prefix}id", "")
                items.append((Tag(kind, raw, key), ""))
            elif name not in _DROPPED and raw.strip():
                items.append((Tag(Kind.ALONE, raw), ""))
            index = last + 1
        return formatted(items, self.prefix)

    def run(self, index: int, end: int) -> Iterator[Item]:
        """Yield the parts of a run. The code of a field belongs to its opening tag."""
        style = ""
        if self.names[index : index + 1] == ["rPr"]:
            style = "".join(token.raw for token in self.tokens[index : self.ends.get(index, index) + 1])
            style = _NO_FORMAT.sub("", _NO_FORMAT.sub("", style))
        while index < end:
            token, name, last = self.tokens[index], self.names[index], self.ends.get(index, index)
            if name == "t":
                text = "".join(text_of(t, False) for t in self.tokens[index + 1 : last])
                if text:
                    yield text, style
            elif name not in _DROPPED and token.raw.strip():
                inside = "".join(t.raw for t in self.tokens[index : last + 1])
                kind, key = Kind.ALONE, ""
                if name == "fldChar":
                    type = token.attributes.get(f"{self.prefix}fldCharType", "")
                    kind, key = _FIELD.get(type, (Kind.ALONE, type))
                space = " " if name in _SPACES else ""
                yield Tag(kind, f"<{self.prefix}r>{style}{inside}</{self.prefix}r>", key, space), style
            index = last + 1
