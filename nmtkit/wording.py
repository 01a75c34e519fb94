"""How messages put things."""

import difflib
import re
from collections.abc import Iterable

_NEAR = 0.75  # difflib's ratio from which on a word may have been meant; at its own 0.6 --path is near to --split

# The control characters C0, DEL and C1, the separators of lines and paragraphs, whatever turns the direction of writing
# around until it is ended, and halves of surrogate pairs, which no encoding has.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The same text with its control characters as in Python's strings (`\n`, `\x1b`, `\u202e`), for a terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_json(text: str) -> str:
    r"""The same JSON with all control characters escaped, such as `\u009b`; JSON itself escapes only some."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things that are named in the singular: no lines, 1 line, 2 lines."""
    return f"{count or 'no'} {noun if count == 1 else plural or noun + 's'}"


def in_bytes(count: float) -> str:
    """A size in memory or on disk: 95 MB, 1.2 GB."""
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{_three_digits(count / unit)} {name}"


def in_millions(count: int) -> str:
    """A number of parameters: 9876, 62.9 M."""
    return f"{_three_digits(count / 1e6)} M" if count >= 10_000 else str(count)


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What to add to a complaint of a word that is not known: those that are near, if there are any."""
    near = difflib.get_close_matches(word, list(known), cutoff=_NEAR)
    return f" Did you mean {' or '.join(near)}?" if near else ""
