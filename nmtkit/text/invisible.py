"""Invisible characters that change how a word is split into pieces, but not what a reader sees."""

import re

_EMOJI = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_INVISIBLE = re.compile(
    # soft hyphen, word joiner, byte order mark, controls of direction, variants of ideographs
    "[\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\U000e0100-\U000e01ef]"
    # variation selectors, except in an emoji or a keycap
    rf"|(?<![#*0-9{_EMOJI}])[\ufe00-\ufe0f]"
    # joiners, except in an emoji or in a script that spells with them, from Arabic to Mongolian
    rf"|(?<![\u0600-\u1cff\ufe0f{_EMOJI}])[\u200c\u200d]"
)


def without_invisible(text: str) -> str:
    """The text without invisible characters. Those that emoji and some scripts need are kept."""
    return text if text.isascii() else _INVISIBLE.sub("", text)
