"""OpenDocument text: paragraphs and headings, including notes, tables, headers and footers."""

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot
from nmtkit.documents.xml import inline_xml, read_xml, render_xml
from nmtkit.documents.zipped import ZippedDocument
from nmtkit.errors import UserError

_PARAGRAPHS = {"text:p", "text:h"}
_SKIPPED = {"text:tracked-changes", "office:automatic-styles", "office:styles", "office:font-face-decls"}
_PAIRS = {"span", "a", "ruby", "ruby-base", "meta"}


def read_odt(content: bytes, options: Options) -> Document:
    return ZippedDocument(content, "content.xml", _read_member)


def _read_member(name: str, data: bytes) -> Document | None:
    if name == "META-INF/manifest.xml" and b"encryption-data" in data:
        raise UserError("the document is encrypted: save it without a password")
    if name not in ("content.xml", "styles.xml"):
        return None
    source, tokens, ends = read_xml(data)
    slots, index = [], 0
    while index < len(tokens):
        token = tokens[index]
        if token.kind == "open" and token.name in _SKIPPED:
            index = ends[index]
        elif token.kind == "open" and token.name in _PARAGRAPHS:  # even in a note of a paragraph
            segment = inline_xml(tokens[index + 1 : ends[index]], _PAIRS, {}, collapsed=True)
            slots.append(Slot(token.end, tokens[ends[index]].start, segment, render_xml))
        index += 1
    return SlicedDocument(source, slots)
