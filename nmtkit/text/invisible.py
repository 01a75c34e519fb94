"""Invisible characters, which change how a word is split into pieces, but not how it looks."""

import re

_EMOJI = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_SPACE = re.compile("[\t\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")  # white space that no model needs to know apart
_INVISIBLE = re.compile(
    # control characters, soft hyphen, word joiner, byte order mark, direction controls, ideographic variation selectors
    "[\x00-\x08\r\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0100-\U000e01ef]"
    # variation selectors, except in an emoji or a keycap
    rf"|(?<![#*0-9{_EMOJI}])[\ufe00-\ufe0f]"
    # joiners, except in an emoji or in a script that needs them, from Arabic to Mongolian
    rf"|(?<![\u0600-\u1cff\ufe0f{_EMOJI}])[\u200c\u200d]"
)


def without_invisible(text: str) -> str:
    """Drop invisible characters except those that emoji and some scripts need. Tabs and line breaks become spaces."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", _SPACE.sub(" ", text))
