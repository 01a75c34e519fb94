"""How messages put things."""

import difflib
from collections.abc import Iterable

_NEAR = 0.75  # difflib's ratio from which on a word may have been meant; at its own 0.6 --path is near to --split


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things that are named in the singular: no lines, 1 line, 2 lines."""
    return f"{count or 'no'} {noun if count == 1 else plural or noun + 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What to add to a complaint of a word that is not known: those that are near, if there are any."""
    near = difflib.get_close_matches(word, list(known), cutoff=_NEAR)
    return f" Did you mean {' or '.join(near)}?" if near else ""
