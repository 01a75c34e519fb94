"""Capitals: texts written in them, and the same texts in the usual case."""

import re
from collections.abc import Callable

_WORD = re.compile(r"(?<![\w./@])\w[\w'’]*(?![\w'’/@]|\.\w)")  # not a part of a URL or an address
_LETTER = re.compile(r"[^\W\d_]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…][\"'”’»)\]]*\s)[\W\d_]*[^\W\d_]")
_ACRONYM = re.compile(r"\b[^\W\d_]{2,}\b")
_FEWEST_LETTERS, _FEWEST_WORDS = 5, 4  # fewer can be an acronym or a name
_SHORT = 3  #: letters of a word that headlines do not capitalize


def lower(text: str) -> str:
    """Lowercase a text without changing its length, so that positions stay valid."""
    return text.replace("İ", "i").lower()


def capitalize_words(text: str) -> str:
    """Capitalize each word of a text."""
    return _WORD.sub(lambda word: word[0][:1].upper() + word[0][1:], text)


def capitals_of(text: str, title: bool) -> Callable[[str], str] | None:
    """Return the function that writes other texts like a text in capitals. None for an acronym and for usual text.

    With `title`, a text with at least four capitalized words also counts if its other words have at most three letters.
    """
    if text.isupper():
        letters = _LETTER.findall(text)  # also letters without case, such as Han
        return str.upper if len(letters) >= _FEWEST_LETTERS and all(map(str.isupper, letters)) else None
    words = [found for word in text.split() if (found := _LETTER.findall(word))] if title else []
    capitalized = sum(word[0].isupper() for word in words)
    others = all(word[0].isupper() or (word[0].islower() and len(word) <= _SHORT) for word in words)
    return capitalize_words if capitalized >= _FEWEST_WORDS and others else None


def running_text(text: str) -> str:
    """Write a text with capitals only at the start of each sentence, and in acronyms. Its length does not change."""
    characters = list(lower(text))
    for match in _SENTENCE_START.finditer(text):
        characters[match.end() - 1] = text[match.end() - 1]
    for match in _ACRONYM.finditer(text) if not text.isupper() else ():
        if match[0].isupper():
            characters[slice(*match.span())] = match[0]
    return "".join(characters)
