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
    """A request for a line in capitals, and the request for the running text that the model is given."""

    given: Request
    running: Request
    capitals: Callable[[str], str]  #: writes a text like the line

    @classmethod
    def of(cls, request: Request, recase: str, languages: Iterable[str]) -> "Recasing | None":
        """Return the recasing that --recase and the languages of a line require; None for a line that stays as it is.

        Lines with ids or text of the target language stay as they are, and Turkish and Azerbaijani.
        """
        if recase == "none" or request.ids is not None or request.target is not None:
            return None
        segment = request.segment or Segment((request.text,))
        texts = [part if isinstance(part, str) else "" for part in segment.parts]
        capitals = capitals_of(" ".join(texts), title=recase == "title")
        if not capitals or request.prefix or request.terms or any(short_code(each) in _DOTTED for each in languages):
            return None
        running, ends = running_text("".join(texts)), accumulate(map(len, texts))
        spans = zip(segment.parts, texts, ends, strict=True)
        parts = tuple(running[end - len(text) : end] if text else part for part, text, end in spans)
        if request.segment is None:
            return cls(request, replace(request, text=running), capitals)
        segment = Segment(parts, segment.movable)
        return cls(request, replace(request, text=segment.text, segment=segment), capitals)

    def restored(self, text: str) -> str:
        """Return a translation in capitals, except for the protected spans of the line."""
        parts = self.given.segment.parts if self.given.segment else ()
        protected = [re.escape(part.text) for part in parts if isinstance(part, Tag) and part.is_protected]
        found = re.split(f"({'|'.join(protected) or '(?!)'})", text)
        return "".join(part if number % 2 else self.capitals(part) for number, part in enumerate(found))

    def restored_segment(self, segment: Segment) -> Segment:
        """Return a translation with tags in capitals."""
        parts = (self.restored(part) if isinstance(part, str) else part for part in segment.parts)
        return Segment(tuple(parts), segment.movable)
