"""Requests: lines with constraints on the translation or with a given translation, and the files that contain them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from unicodedata import category

from nmtkit.console.log import logger
from nmtkit.decoding.config import RequestConfig
from nmtkit.errors import UserError
from nmtkit.text.casing import lower
from nmtkit.text.input_stream import ALL_LINES
from nmtkit.text.languages import UNSPACED_LETTER
from nmtkit.text.reading import is_regular_file, read_lines
from nmtkit.text.segment import Segment
from nmtkit.wording import counted, quoted


@dataclass(frozen=True)
class Request:
    """A line to translate. `prefix`, `terms` and `target` are text of the target language.

    `source_tag` is added before the text for the model, and is not part of the line in results.
    """

    text: str
    prefix: str = ""  #: the beginning of the translation, in whole words
    terms: tuple[str, ...] = ()  #: words that the translation must contain
    target: str | None = None  #: a given translation to score instead of a search
    ids: Sequence[int] | None = None  #: the token ids of `text`, if known
    source_tag: str = ""  #: a piece of the source vocabulary
    source_lang: str = ""  #: for a model with language codes; empty for that of the translator
    target_lang: str = ""  #: as `source_lang`
    glossary: "Glossary | None" = None  #: adds the target terms of sentences that contain a source term
    segment: Segment | None = None  #: with the tags of `text`, to be placed in the translation

    @classmethod
    def of(cls, segment: Segment) -> "Request":
        """Return the request to translate a segment."""
        return cls(segment.text, segment=segment)

    def __post_init__(self) -> None:
        """Raise UserError if `terms` is a single string, whose letters would be taken for terms."""
        if isinstance(self.terms, str):
            raise UserError(f"terms: a list of strings is expected, not {quoted(self.terms)} alone")


def tsv_requests(chunks: Iterable[Sequence[str | Request]], first_line: int) -> Iterator[list[Request]]:
    """Yield requests from chunks of lines: source language, target language, text. Raises UserError for a bad line."""
    numbers = count(first_line)
    for chunk in chunks:
        yield [_from_tsv(str(line), next(numbers)) for line in chunk]


def _from_tsv(line: str, number: int) -> Request:
    if not line.strip():
        return Request("")
    fields = line.split("\t", 2)
    if len(fields) < 3:
        raise UserError(f"line {number}: source language, target language and text are expected, separated by tabs")
    return Request(fields[2], source_lang=fields[0], target_lang=fields[1])


class RequestFiles:
    """The files with one line for each input line, the glossary, and the tag of all lines."""

    def __init__(self, config: RequestConfig, ignore_case: bool = False) -> None:
        """Read the glossary. Raises UserError if it is missing or malformed."""
        given = {"--prefix": config.prefix, "--constraints": config.constraints, "--score": config.score}
        self._files = {flag: path for flag, path in given.items() if path is not None}
        self._source_tag = config.source_tag
        self._glossary = None if config.glossary is None else Glossary.read(config.glossary, ignore_case)

    def check_length(self, count: Callable[[], int | None]) -> None:
        """Raise UserError if a file and the input have different numbers of lines.

        `count` returns the lines of the input, or None if they cannot be counted before the translation.
        """
        lines = count() if self._files else None
        if lines is None:
            return
        for flag, path in self._files.items():
            if is_regular_file(path) and (own := sum(1 for _ in read_lines(path))) != lines:
                raise UserError(f"{flag} {path} has {counted(own, 'line')}, the input has {lines}")

    def attach(
        self, chunks: Iterable[Sequence[str | Request]], shard: slice = ALL_LINES
    ) -> Iterator[Sequence[str | Request]]:
        """Combine the lines of a shard and the lines of the files into requests.

        Raises UserError if a file has more or fewer lines than the input.
        """
        if not self._files and self._glossary is None and not self._source_tag:
            yield from chunks
            return
        files = {flag: islice(read_lines(path), shard.start, shard.stop) for flag, path in self._files.items()}
        for chunk in chunks:
            yield [
                self._attached(line, {flag: self._next(flag, file) for flag, file in files.items()}) for line in chunk
            ]
        for flag, file in files.items():
            if next(file, None) is not None:
                raise UserError(f"{flag} {self._files[flag]} has more lines than the input")

    def report(self) -> None:
        """Log how many glossary terms did not occur in any line, if any."""
        if self._glossary is not None and self._glossary.unused:
            lost, terms = len(self._glossary.unused), counted(self._glossary.size, "glossary term")
            logger.info("%d of %s do not occur in any line, for example %r", lost, terms, min(self._glossary.unused))

    def _next(self, flag: str, file: Iterator[str]) -> str:
        line = next(file, None)
        if line is None:
            raise UserError(f"{flag} {self._files[flag]} has fewer lines than the input")
        return line

    def _attached(self, line: str | Request, lines: dict[str, str]) -> Request:
        """Return the request for an input line and the lines of the files, by flag."""
        line = Request(line) if isinstance(line, str) else line
        terms = [term for term in lines.get("--constraints", "").split("\t") if term.strip()]
        prefix = lines.get("--prefix", "").strip()
        tag = line.source_tag or self._source_tag
        target, glossary = lines.get("--score"), self._glossary
        return replace(line, prefix=prefix, terms=tuple(terms), target=target, source_tag=tag, glossary=glossary)


class Glossary:
    """Terms of the source language with their translations. Any white space in a text matches a space of a term."""

    def __init__(self, entries: dict[str, str], ignore_case: bool = False) -> None:
        """`entries` maps source terms, with single spaces between words, to target terms. Case matters by default."""
        self._fold = lower if ignore_case else str
        self._entries = {self._fold(term): target for term, target in entries.items()}
        self.size, self.unused = len(self._entries), set(self._entries)  #: terms, and those that no text has contained
        lengths: dict[str, set[int]] = {}
        for term in self._entries:
            lengths.setdefault(term[0], set()).add(len(term))
        self._longest_first = {first: sorted(own, reverse=True) for first, own in lengths.items()}

    @classmethod
    def read(cls, path: Path, ignore_case: bool = False) -> "Glossary":
        """Read a glossary with a source term, a tab and a target term per line. Raises UserError for a bad line."""
        entries: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), 1):
            terms = [_single_spaced(term) for term in line.split("\t")]
            if terms == [""]:
                continue
            if len(terms) != 2 or not all(terms):
                raise UserError(
                    f"--glossary {path}, line {number}: a source term, a tab and a target term are expected"
                )
            if entries.setdefault(terms[0], terms[1]) != terms[1]:
                raise UserError(f"--glossary {path}, line {number}: {terms[0]!r} has a different translation above")
        return cls(entries, ignore_case)

    def terms(self, text: str) -> list[str]:
        """Return the target terms of the source terms in a text. If terms overlap, the first wins, then the longest."""
        text, found, start = self._fold(_single_spaced(text)), [], 0
        while start < len(text):
            candidates = (text[start : start + length] for length in self._longest_first.get(text[start], ()))
            whole = (term for term in candidates if term in self._entries and _is_whole(term, text, start))
            term = next(whole, None)
            if term is not None:
                found.append(self._entries[term])
                self.unused.discard(term)
            start += len(term or " ")
        return found


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _is_whole(term: str, text: str, start: int) -> bool:
    """Whether a term at `start` in a text consists of whole words."""
    end = start + len(term)
    if text.endswith("@@ ", 0, start) or text.startswith("@@ ", end):  # a part of a word in segmented text
        return False
    neighbours = ((term[0], text[max(0, start - 1) : start]), (term[-1], text[end : end + 1]))
    return not any(_is_in_word(next_to) and not UNSPACED_LETTER.search(edge + next_to) for edge, next_to in neighbours)


def _is_in_word(character: str) -> bool:
    """Whether a character is a letter, a digit, or a mark, such as an accent or an Indic vowel, which `\\w` omits."""
    return character.isalnum() or character == "_" or (character != "" and category(character)[0] == "M")
