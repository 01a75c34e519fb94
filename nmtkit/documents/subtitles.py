"""SubRip and WebVTT: the lines of a cue are joined, translated and wrapped again. Lines of a dialogue stay apart."""

import re
from collections.abc import Iterator
from functools import partial
from html import escape as escape_html

from nmtkit.documents.document import Document, Options, SlicedDocument, Slot, plain, text_source
from nmtkit.documents.wrapping import wrapped
from nmtkit.errors import UserError
from nmtkit.text.markup import Token, text_of
from nmtkit.text.segment import Kind, Part, Segment, Tag, balanced

_TIME = r"(?:\d+:)?\d+:\d\d[.,]\d+"
_TIMING = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}.*$", re.MULTILINE)
_CUE = re.compile(r"(?:\r?\n|\r)((?:(?![^\r\n]*-->)[^\r\n]*[^\s][^\r\n]*(?:\r?\n|\r|\Z))+)")
_TAG = re.compile(r"</?[a-zA-Z0-9][^<>]*>|\{\\[^{}]*\}")
_DASH = re.compile(r"[ \t]*(?:[-–—‐][ \t]*)(?=\S)")
_MIN_WIDTH = 32  #: characters of a line, if all lines of a file are shorter


def read_srt(content: bytes, options: Options) -> Document:
    return _read(content, is_vtt=False)


def read_vtt(content: bytes, options: Options) -> Document:
    if not content.removeprefix(b"\xef\xbb\xbf").startswith(b"WEBVTT"):
        raise UserError("the document is not WebVTT: it does not begin with WEBVTT")
    return _read(content, is_vtt=True)


def _read(content: bytes, is_vtt: bool) -> Document:
    source = text_source(content)
    cues = [cue.span(1) for timing in _TIMING.finditer(source.text) if (cue := _CUE.match(source.text, timing.end()))]
    if not is_vtt and source.text.strip("\ufeff \r\n") and not _TIMING.search(source.text):
        raise UserError("the document has no subtitles: no line has times such as 00:00:01,000 --> 00:00:02,000")
    lines = [line for start, end in cues for line in _TAG.sub("", source.text[start:end]).splitlines()]
    width = max([_MIN_WIDTH, *map(len, lines)])
    return SlicedDocument(
        source, [slot for start, end in cues for slot in _slots(source.text, start, end, width, is_vtt)]
    )


def _slots(text: str, start: int, end: int, width: int, is_vtt: bool) -> Iterator[Slot]:
    """Yield the slot of a cue, or of each line of a dialogue."""
    end -= len(text[start:end]) - len(text[start:end].rstrip("\r\n"))
    lines = list(re.finditer(r"[^\r\n]+", text[start:end]))
    dashes = [_DASH.match(_TAG.sub("", line.group())) for line in lines]
    if len(lines) > 1 and all(dashes):
        for line in lines:
            dash = _DASH.match(line.group())
            yield _slot(text, start + (dash.end() if dash else 0) + line.start(), start + line.end(), 1, width, is_vtt)
    else:
        yield _slot(text, start, end, len(lines), width, is_vtt)


def _slot(text: str, start: int, end: int, lines: int, width: int, is_vtt: bool) -> Slot:
    newline = "\r\n" if "\r\n" in text else "\n"

    def write(segment: Segment) -> str:
        return plain(wrapped(segment, lines, width, newline), partial(escape_html, quote=False) if is_vtt else str)

    return Slot(start, end, _segment(text[start:end], is_vtt), write)


def _segment(text: str, is_vtt: bool) -> Segment:
    parts: list[Part] = []
    at = 0
    for match in [*_TAG.finditer(text), None]:
        raw = re.sub(r"\s+", " ", text[at : match.start() if match else len(text)])
        parts.append(text_of(Token("text", 0, 0, raw), is_html=True) if is_vtt else raw)
        if match:
            at = match.end()
            raw = match.group()
            kind = Kind.CLOSE if raw[1] == "/" else Kind.OPEN if raw[1].isalpha() else Kind.ALONE
            parts.append(Tag(kind, raw, re.sub(r"[ .>].*", "", raw.strip("</"), flags=re.DOTALL)))
    return balanced(parts, movable=len(re.findall(r"<\d", text)) < 2)  # times inside a cue ascend
