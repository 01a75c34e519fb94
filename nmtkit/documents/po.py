"""Gettext catalogs: translates each message without a translation, including plural forms, and keeps the others."""

import re
from collections.abc import Iterator
from functools import partial

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, text_source
from nmtkit.errors import UserError
from nmtkit.text.segment import Segment

_CHARSET = re.compile(rb"Content-Type:[^\n]*charset=([\w-]+)")
_STRING = r'"((?:[^"\\\n]|\\.)*)"\s*'
_FIELD = re.compile(rf"\s*(msgctxt|msgid_plural|msgid|msgstr(?:\[(\d+)\])?)\s*((?:{_STRING})+)")
_COMMENT = re.compile(r"\s*(?:#.*)?(?:\n|\Z)")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {ord(char): f"\\{letter}" for letter, char in _ESCAPED.items()} | {ord("\\"): "\\\\", ord('"'): '\\"'}


def read_po(content: bytes, options: Options) -> Document:
    source = text_source(content, _CHARSET)
    newline = "\r\n" if "\r\n" in source.text else "\n"
    slots, singular, plural = [], "", ""
    for field in _fields(source.text):
        keyword, form, strings = field[1], field[2], field[3]
        text = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), "".join(re.findall(_STRING, strings)))
        if keyword == "msgid":
            singular = plural = text
        elif keyword == "msgid_plural":
            plural = text
        elif keyword.startswith("msgstr") and not text and singular:
            segment = Segment((singular if form in (None, "0") else plural,))
            end = field.start(3) + len(strings.rstrip())
            slots.append(Slot(field.start(3), end, segment, partial(_render, newline=newline), is_target=True))
    return SlicedDocument(source, slots)


def _fields(text: str) -> Iterator[re.Match[str]]:
    at = int(text.startswith("\ufeff"))
    while at < len(text):
        if field := _FIELD.match(text, at):
            yield field
        match = field or _COMMENT.match(text, at)
        if not match:
            number, line = text.count("\n", 0, at) + 1, text[at:].lstrip().partition("\n")[0]
            raise UserError(f"line {number} of the document is not valid in a PO file: {line[:40]!r}")
        at = match.end()


def _render(segment: Segment, newline: str) -> str:
    lines = segment.plain.splitlines(keepends=True)
    quoted = [f'"{line.translate(_ESCAPES)}"' for line in lines]
    return newline.join(['""', *quoted] if len(quoted) > 1 else quoted)
