"""Recasing: lines in capitals are translated as running text, and their capitals are restored.

Most models spell words in capitals letter by letter.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from nmtkit.decoding.requests import Request
from nmtkit.text.casing import capitals_of, running_text
from nmtkit.text.languages import short_code
from nmtkit.text.segment import Segment, Tag

_DOTTED = ("az", "tr")  # languages in which I is the capital of ı


@dataclass(frozen=True)
class Recasing:
    """How the translation of a line in capitals is written. The model is given the line as running text."""

    given: Request
    capitals: Callable[[str], str]  #: writes a text like the line

    @classmethod
    def of(cls, request: Request, recase: str, languages: Iterable[str]) -> "Recasing | None":
        """Return the recasing that --recase requires; None for a line that stays as it is.

        Lines with ids, a prefix, terms or a given target stay as they are, and lines from or to Turkish or Azerbaijani.
        """
        is_fixed = request.ids is not None or request.target is not None or request.prefix or request.terms
        if recase == "none" or is_fixed or any(short_code(language) in _DOTTED for language in languages):
            return None
        capitals = capitals_of(" ".join(_texts(request)), title=recase == "title")
        has_terms = capitals and request.glossary and request.glossary.terms(request.text)
        return cls(request, capitals) if capitals and not has_terms else None

    @property
    def running(self) -> Request:
        """The request for the line as running text."""
        texts, segment = _texts(self.given), self.given.segment
        running = running_text("".join(texts))
        if segment is None:
            return replace(self.given, text=running)
        spans = zip(segment.parts, texts, accumulate(map(len, texts)), strict=True)
        parts = tuple(running[end - len(text) : end] if text else part for part, text, end in spans)
        segment = Segment(parts, segment.movable)
        return replace(self.given, text=segment.text, segment=segment)

    def restored(self, text: str) -> str:
        """Return a translation in capitals, except for the protected spans of the line that are part of it."""
        parts = self.given.segment.parts if self.given.segment else ()
        protected = "|".join(_whole(part.text) for part in parts if isinstance(part, Tag) and part.written != part)
        found = re.split(f"({protected or '(?!)'})", text)
        return "".join(part if number % 2 else self.capitals(part) for number, part in enumerate(found))


def _texts(request: Request) -> list[str]:
    """The text of each part of a request, empty for a tag."""
    parts = request.segment.parts if request.segment else (request.text,)
    return [part if isinstance(part, str) else "" for part in parts]


def _whole(text: str) -> str:
    """A pattern of a text that does not touch a longer word."""
    before, after = ("\\b" if edge.isalnum() else "" for edge in (text[0], text[-1]))
    return before + re.escape(text) + after
