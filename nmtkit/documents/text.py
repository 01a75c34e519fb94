"""Plain text: paragraphs, separated by blank lines, list items and indentation."""

import re
from functools import partial

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, text_source
from nmtkit.documents.wrapping import wrapped
from nmtkit.text.segment import Segment

_ITEM = re.compile(r"\ufeff?[ \t]*(?:[-*+•–][ \t]+|\d+[.)][ \t]+)?")


def read_text(content: bytes, options: Options) -> Document:
    source = text_source(content)
    spans: list[tuple[int, int]] = []
    at, is_open = 0, False
    for line in source.text.splitlines(keepends=True):
        mark = _ITEM.match(line)
        start, end = at + (mark.end() if mark else 0), at + len(line.rstrip())
        if start >= end:
            is_open = False
        elif is_open and start == at:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
            is_open = True
        at += len(line)
    newline = "\r\n" if "\r\n" in source.text else "\n"
    slots = []
    for start, end in spans:
        lines = source.text[start:end].splitlines()
        width = max(map(len, lines)) if len(lines) > 1 else 1 << 30
        render = partial(_render, width=width, newline=newline)
        slots.append(Slot(start, end, Segment((" ".join(source.text[start:end].split()),)), render))
    return SlicedDocument(source, slots)


def _render(segment: Segment, width: int, newline: str) -> str:
    return wrapped(segment, 1, width, newline).plain
