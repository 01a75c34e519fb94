"""Gettext catalogs: translates each message without a translation, including plural forms, and keeps the others."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, text_source
from nmtkit.errors import UserError
from nmtkit.text.segment import Segment

_CHARSET = re.compile(rb"Content-Type:[^\n]*charset=([\w-]+)")
_KEYWORD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*(?=\")")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"\s*$')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {ord(char): f"\\{letter}" for letter, char in _ESCAPED.items()} | {ord("\\"): "\\\\", ord('"'): '\\"'}


@dataclass
class _Field:
    keyword: str
    form: str | None  # of msgstr[form]
    start: int
    end: int
    text: str = ""


def read_po(content: bytes, options: Options) -> Document:
    source = text_source(content, _CHARSET)
    newline = "\r\n" if "\r\n" in source.text else "\n"
    slots, singular, plural = [], "", ""
    for field in _fields(source.text):
        if field.keyword == "msgid":
            singular = plural = field.text
        elif field.keyword == "msgid_plural":
            plural = field.text
        elif field.keyword.startswith("msgstr") and not field.text and singular:
            segment = Segment((singular if field.form in (None, "0") else plural,))
            slots.append(Slot(field.start, field.end, segment, partial(_render, newline=newline), is_target=True))
    return SlicedDocument(source, slots)


def _fields(text: str) -> Iterator[_Field]:
    field: _Field | None = None
    at = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        begin = line.lstrip("\ufeff \t")
        keyword = _KEYWORD.match(begin)
        string = _STRING.match(begin, keyword.end() if keyword else 0)
        if keyword and string:
            if field:
                yield field
            start = at + len(line) - len(begin) + keyword.end()
            field = _Field(keyword[1], keyword[2], start, start)
        elif (not string or not field) and begin.strip() and not begin.startswith("#"):
            raise UserError(f"line {number} of the document is not valid in a PO file: {begin.strip()[:40]!r}")
        if string and field:
            field.end = at + len(line) - len(begin) + string.end(1) + 1
            field.text += _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), string[1])
        at += len(line)
    if field:
        yield field


def _render(segment: Segment, newline: str) -> str:
    lines = segment.plain.splitlines(keepends=True)
    quoted = [f'"{line.translate(_ESCAPES)}"' for line in lines]
    return newline.join(['""', *quoted] if len(quoted) > 1 else quoted)
