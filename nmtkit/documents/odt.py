"""OpenDocument text: paragraphs and headings, including notes, tables, headers and footers."""

from nmtkit.documents.document import Document, Options
from nmtkit.documents.xml import paragraphs
from nmtkit.documents.zipped import ZippedDocument
from nmtkit.errors import UserError

_PARAGRAPHS = {"text:p", "text:h"}
_SKIPPED = {"text:tracked-changes", "office:automatic-styles", "office:styles", "office:font-face-decls"}
_PAIRS = {"span", "a", "ruby", "ruby-base", "meta"}


def read_odt(content: bytes, options: Options) -> Document:
    document = ZippedDocument(content, _read_member)
    document.require("content.xml", "odt")
    return document


def _read_member(name: str, data: bytes) -> Document | None:
    if name == "META-INF/manifest.xml" and b"encryption-data" in data:
        raise UserError("the document is encrypted: save it without a password")
    if name not in ("content.xml", "styles.xml"):
        return None
    return paragraphs(data, _PARAGRAPHS, _SKIPPED, _PAIRS)
