"""Capitals: texts written in them, and the same texts in the usual case."""

import re
from collections.abc import Callable

_WORD = re.compile(r"(?<![\w./@])\w[\w'’]*(?![\w'’/@]|\.\w)")  # not a part of a URL or an address
_LETTER = re.compile(r"[^\W\d_]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…][\"'”’»)\]]*\s)[\W\d_]*[^\W\d_]")
_FEWEST_LETTERS, _FEWEST_WORDS = 5, 4  # less can be an acronym or a name


def lower(text: str) -> str:
    """Lowercase a text without changing its length, so that positions stay valid."""
    low = text.lower()
    return low if len(low) == len(text) else "".join(one if len(one.lower()) > 1 else one.lower() for one in text)


def capitalize_words(text: str) -> str:
    """Capitalize each word of a text."""
    return _WORD.sub(lambda word: word[0][:1].upper() + word[0][1:], text)


def capitals_of(text: str, title: bool) -> Callable[[str], str] | None:
    """Return the function that writes other texts like a text in capitals. None for an acronym and for usual text.

    With `title`, a text of at least four words also counts if each of them is capitalized.
    """
    if text.isupper():
        return str.upper if len(_LETTER.findall(text)) >= _FEWEST_LETTERS else None
    firsts = [letter[0] for word in text.split() if (letter := _LETTER.search(word))] if title else []
    return capitalize_words if len(firsts) >= _FEWEST_WORDS and all(map(str.isupper, firsts)) else None


def running_text(text: str) -> str:
    """Write a text with a capital only at the start of each sentence. Its length does not change."""
    characters = list(lower(text))
    for match in _SENTENCE_START.finditer(text):
        characters[match.end() - 1] = text[match.end() - 1]
    return "".join(characters)
