"""CSV and TSV: the fields of chosen columns, with their quotation marks."""

import re
from collections.abc import Iterator
from functools import partial

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, text_source
from nmtkit.errors import UserError
from nmtkit.text.segment import Segment


def read_csv(content: bytes, options: Options) -> Document:
    first = content.partition(b"\n")[0].decode("utf-8", "replace")
    return _read(content, options, max(",;\t|", key=first.count))


def _read(content: bytes, options: Options, delimiter: str) -> Document:
    source = text_source(content)
    rows = [*_rows(source.text, delimiter)]
    header = [_value(source.text[slice(*span)]) for span in rows[0]] if rows else []
    columns = {_column(name, header) for name in options.columns}
    has_names = any(not name.isdecimal() for name in options.columns)  # then the first row is no text
    slots = []
    for row in rows[has_names:]:
        for number, (start, end) in enumerate(row):
            if not columns or number in columns:
                raw = source.text[start:end]
                render = partial(_render, delimiter=delimiter, quoted=raw.startswith('"'))
                slots.append(Slot(start, end, Segment((_value(raw),)), render))
    return SlicedDocument(source, slots)


read_tsv = partial(_read, delimiter="\t")


def _column(name: str, header: list[str]) -> int:
    """Return the index of a column, given its name or its number from 1."""
    if name in header:
        return header.index(name)
    if name.isdecimal() and int(name):
        return int(name) - 1
    raise UserError(f"the document has no column {name!r}: use one of {', '.join(header)}")


def _rows(text: str, delimiter: str) -> Iterator[list[tuple[int, int]]]:
    """Yield the spans of the fields of each row, as the csv module reads them."""
    mark = re.escape(delimiter)
    field = re.compile(rf'((?:"(?:[^"]|"")*"?)?[^{mark}\r\n]*)({mark}|\r\n|[\r\n]|\Z)')
    row = []
    for match in field.finditer(text, int(text.startswith("\ufeff"))):
        row.append(match.span(1))
        if match[2] != delimiter:
            yield row
            row = []


def _value(raw: str) -> str:
    return raw[1:].rstrip().removesuffix('"').replace('""', '"') if raw.startswith('"') else raw


def _render(segment: Segment, delimiter: str, quoted: bool) -> str:
    text = segment.plain
    if quoted or any(mark in text for mark in (delimiter, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text
