"""The reader of each document format, and the translation of a document."""

import re
from collections.abc import Callable, Sequence

from nmtkit.documents.document import Document, Options, is_translatable
from nmtkit.documents.docx import read_docx
from nmtkit.documents.html import read_html
from nmtkit.documents.json_values import read_json
from nmtkit.documents.markdown import read_markdown
from nmtkit.documents.odt import read_odt
from nmtkit.documents.po import read_po
from nmtkit.documents.subtitles import read_srt, read_vtt
from nmtkit.documents.tables import read_csv, read_tsv
from nmtkit.documents.text import read_text
from nmtkit.documents.tmx import read_tmx
from nmtkit.documents.xliff import read_xliff
from nmtkit.text.segment import PLACEHOLDERS, Segment, protect

#: The readers of `nmtkit.documents.FORMATS`.
READERS: dict[str, Callable[[bytes, Options], Document]] = {
    "csv": read_csv,
    "docx": read_docx,
    "html": read_html,
    "json": read_json,
    "md": read_markdown,
    "odt": read_odt,
    "po": read_po,
    "srt": read_srt,
    "tmx": read_tmx,
    "tsv": read_tsv,
    "txt": read_text,
    "vtt": read_vtt,
    "xliff": read_xliff,
}


def translate_document(
    content: bytes,
    format: str,
    translate: Callable[[Sequence[Segment]], Sequence[Segment]],
    options: Options = Options(),  # noqa: B008
    protected: re.Pattern[str] = PLACEHOLDERS,
) -> bytes:
    """Translate a document of one of `FORMATS`. Text that `protected` matches is restored byte for byte.

    `translate` returns a segment for each segment, in their order.
    """
    document = ProtectedDocument(READERS[format](content, options), protected)
    return document.write(translate(document.segments))


class ProtectedDocument:
    """A document whose `segments` have protected spans, and only those that there is anything to translate in."""

    def __init__(self, document: Document, protected: re.Pattern[str] = PLACEHOLDERS) -> None:
        self._document = document
        sent = enumerate(protect(segment, protected) for segment in document.segments)
        self._sent = {index: segment for index, segment in sent if is_translatable(segment)}

    @property
    def segments(self) -> Sequence[Segment]:
        return [*self._sent.values()]

    def write(self, translations: Sequence[Segment]) -> bytes:
        """The bytes of the file with a translation for each segment."""
        results = list(self._document.segments)
        for (index, given), translation in zip(self._sent.items(), translations, strict=True):
            if translation != given:
                results[index] = translation
        return self._document.write(results)
