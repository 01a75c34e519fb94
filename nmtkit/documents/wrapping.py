"""Wraps translated text, whose lines were joined for translation."""

import unicodedata

from nmtkit.text.segment import Part, Segment

_NOT_AT_START = frozenset("、。，．：；？！）」』】〉》ー…々’”")


def wrapped(segment: Segment, lines: int, width: int, newline: str) -> Segment:
    """Wrap the text of a segment to `lines` similar lines, or to more lines if they would exceed `width` characters."""
    text = segment.plain
    narrow = range(-(-len(text) // lines), width)
    breaks = next((found for w in narrow if len(found := _break(text, w)) < lines), None) or _break(text, width)
    parts: list[Part] = []
    at = 0
    for part in segment.parts:
        length = len(part if isinstance(part, str) else part.text)
        if isinstance(part, str):
            for place in sorted((place for place in breaks if at <= place < at + length), reverse=True):
                rest = part[place - at :]
                part = part[: place - at] + newline + (rest[1:] if rest[0] == " " else rest)
        parts.append(part)
        at += length
    return Segment(tuple(parts), segment.movable)


def _break(text: str, width: int) -> list[int]:
    """Return where lines of at most `width` characters break: at spaces, or between letters without spaces."""
    breaks: list[int] = []
    start = last = 0
    for index in range(1, len(text)):
        is_wide = unicodedata.east_asian_width(text[index]) == unicodedata.east_asian_width(text[index - 1]) == "W"
        if text[index] == " " or (is_wide and text[index] not in _NOT_AT_START):
            if index - start > width and last > start:
                breaks.append(last)
                start = last + (text[last] == " ")
            last = index
    if len(text) - start > width and last > start:
        breaks.append(last)
    return breaks
