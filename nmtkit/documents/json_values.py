"""JSON: string values of all keys, or of keys that match patterns such as `messages.*.text`."""

import json
import re
from fnmatch import fnmatchcase
from functools import partial

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, text_source
from nmtkit.errors import UserError
from nmtkit.text.segment import Segment

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def read_json(content: bytes, options: Options) -> Document:
    source = text_source(content)
    text = source.text.removeprefix("\ufeff")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the document is not JSON: {error}") from None
    offset = len(source.text) - len(text)
    slots: list[Slot] = []
    path: list[str | int] = []  # keys and indexes around
    is_key = False
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "{[":
            path.append("" if token == "{" else 0)
            is_key = token == "{"
        elif token in "}]":
            path.pop()
        elif token == ",":
            is_key = isinstance(path[-1], str)
            if isinstance(path[-1], int):
                path[-1] += 1
        elif token == ":":
            is_key = False
        elif is_key:
            path[-1] = json.loads(token)
        elif token.startswith('"'):
            name = ".".join(map(str, path))
            if not options.keys or any(fnmatchcase(name, pattern) for pattern in options.keys):
                start, end = (place + offset for place in match.span())
                is_ascii = token.isascii() and "\\u" in token
                slots.append(Slot(start, end, Segment((json.loads(token),)), partial(_render, is_ascii=is_ascii)))
    return SlicedDocument(source, slots)


def _render(segment: Segment, is_ascii: bool) -> str:
    return json.dumps(segment.plain, ensure_ascii=is_ascii)
