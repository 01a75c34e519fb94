"""The protocol of documents, and a document that translates slices of a text and keeps all other bytes."""

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nmtkit.errors import UserError
from nmtkit.text.segment import Part, Segment


class Document(Protocol):
    """A parsed file. It provides the segments to translate, in order, and writes the file with translations."""

    @property
    def segments(self) -> Sequence[Segment]: ...

    def write(self, translations: Sequence[Segment]) -> bytes:
        """Return the bytes of the file with a translation for each segment. An unchanged segment keeps its bytes."""
        ...


@dataclass(frozen=True)
class Options:
    """Options of formats: HTML elements to keep, columns (names or numbers), keys (patterns), the target language."""

    kept: frozenset[str] = frozenset()
    columns: Sequence[str] = ()
    keys: Sequence[str] = ()
    target_language: str = ""


@dataclass(frozen=True)
class Slot:
    """A slice of the source that a translation replaces. The slot of a target is written even if nothing changed."""

    start: int
    end: int
    segment: Segment
    render: Callable[[Segment], str]  #: from a translated segment to its text in the file
    is_target: bool = False


@dataclass(frozen=True)
class Source:
    """A decoded file. Encoding `text` again gives its bytes."""

    text: str
    encoding: str = "utf-8"
    errors: str = "strict"


@dataclass
class SlicedDocument:
    """A document of one text. Slots may be inside tags of other slots (attributes, footnotes), but must not cross."""

    source: Source
    slots: list[Slot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [slot for slot in self.slots if slot.segment.is_translatable]
        self.slots.sort(key=lambda slot: (slot.start, -slot.end))

    @property
    def segments(self) -> Sequence[Segment]:
        return [slot.segment for slot in self.slots]

    def write(self, translations: Sequence[Segment]) -> bytes:
        return self.text(translations).encode(self.source.encoding, self.source.errors)

    def text(self, translations: Sequence[Segment]) -> str:
        done: list[tuple[int, int, str]] = []  # replaced slices, last first
        for slot, translation in reversed(list(zip(self.slots, translations, strict=True))):
            inner = []
            while done and done[-1][1] <= slot.end and slot.start < slot.end:
                inner.append(done.pop())
            if translation == slot.segment and not slot.is_target:
                text = self.splice(slot.start, slot.end, inner)
            else:
                segment = with_edges(translation, slot.segment)
                text = slot.render(replace(segment, parts=tuple(self.updated(part, inner) for part in segment.parts)))
            done.append((slot.start, slot.end, text))
        return self.splice(0, len(self.source.text), reversed(done))

    def updated(self, part: Part, entries: Sequence[tuple[int, int, str]]) -> Part:
        """Return a part of a segment; if it is a tag, with the slices inside replaced."""
        if isinstance(part, str) or part.offset < 0:
            return part
        end = part.offset + len(part.raw)
        inside = [entry for entry in entries if part.offset <= entry[0] and entry[1] <= end]
        return replace(part, raw=self.splice(part.offset, end, inside))

    def splice(self, start: int, end: int, entries: Iterable[tuple[int, int, str]]) -> str:
        """Return a slice of the source in which the given slices are replaced. `entries` are in order."""
        parts = []
        for first, last, text in entries:
            parts += [self.source.text[start:first], text]
            start = last
        return "".join([*parts, self.source.text[start:end]])


def with_edges(translation: Segment, original: Segment) -> Segment:
    """Return the translation with the white space at both ends of the original."""
    first, last = (part if isinstance(part, str) else "" for part in (original.parts[0], original.parts[-1]))
    start, end = first[: len(first) - len(first.lstrip())], last[len(last.rstrip()) :]
    parts = list(translation.parts)
    if parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return Segment(tuple(part for part in (start, *parts, end) if part), translation.movable)


def plain(segment: Segment, escaped: Callable[[str], str] = str) -> str:
    """Render a segment whose text is `escaped`, or needs no escapes."""
    return "".join(escaped(part) if isinstance(part, str) else part.raw for part in segment.parts)


def text_source(content: bytes, declaration: re.Pattern[bytes] | None = None, errors: str = "strict") -> Source:
    """Decode a file by its byte order mark, by the encoding that `declaration` finds at its start, or as UTF-8."""
    encoding = "utf-8"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16-le" if content.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    elif declaration and not content.startswith(codecs.BOM_UTF8) and (match := declaration.search(content[:4096])):
        encoding = match[1].decode("ascii", "replace")
    try:
        text = content.decode(encoding)
        if text.encode(encoding) != content:
            raise UnicodeError
    except (LookupError, UnicodeError):
        raise UserError(f"the document is not valid {encoding}: convert it to UTF-8") from None
    return Source(text, encoding, errors)
