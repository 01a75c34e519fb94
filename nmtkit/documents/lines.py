"""A line of HTML, XML or plain text as a document. Block elements of HTML divide it into segments."""

from nmtkit.documents.document import Options, SlicedDocument, Slot, Source, plain
from nmtkit.documents.html import html_document
from nmtkit.documents.xml import render_xml
from nmtkit.text.markup import parse
from nmtkit.text.segment import Segment


def read_line(line: str, markup: str | None, options: Options) -> SlicedDocument:
    """Read a line as a document. `markup` is "html", "xml", or None for plain text."""
    if markup == "html":
        return html_document(Source(line), options)
    if markup == "xml":
        slot = Slot(0, len(line), parse(line, is_html=False, kept=options.kept), render_xml)
    else:
        slot = Slot(0, len(line), Segment((line,)), plain)
    return SlicedDocument(Source(line), [slot])
