"""Documents: finds the translatable text in the bytes of a file, and keeps all other bytes.

Each format is a function from the bytes of a file to a `Document`, with `segments` in the order of the file, and
`write`, which takes their translations. An unchanged segment keeps its bytes. Errors of the input are UserErrors
without the file's name.
"""

import re
from collections.abc import Callable, Sequence

from nmtkit.documents.document import Document, Options
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
from nmtkit.text.segment import Segment, protect

#: The reader of each format.
FORMATS: dict[str, Callable[[bytes, Options], Document]] = {
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


class Prepared:
    """A document with the `segments` to translate, in which `protected` text is restored byte for byte."""

    def __init__(self, document: Document, protected: Sequence[re.Pattern[str]]) -> None:
        self._results = list(document.segments)
        sent = enumerate(protect(segment, *protected) for segment in self._results)
        self._sent = {number: segment for number, segment in sent if segment.is_translatable}
        self.segments = list(self._sent.values())

    def finished(self, translations: Sequence[Segment]) -> list[Segment]:
        """Return all segments of the document, given the translations of `segments`."""
        for (number, given), translation in zip(self._sent.items(), translations, strict=True):
            if translation != given:
                self._results[number] = translation
        return self._results
