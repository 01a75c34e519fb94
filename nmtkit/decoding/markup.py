"""Translates lines of HTML or XML, and lines with protected text. Each line is treated as a small document."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from nmtkit.decoding.config import MarkupConfig
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.documents import Prepared
from nmtkit.documents.document import Options
from nmtkit.documents.lines import read_line
from nmtkit.text.segment import Segment

#: Translates chunks of requests, each before the next one is read.
Stream = Callable[[Iterable[Sequence[Request]]], Iterator[Translation]]


def stream_markup(
    lines: Iterable[Sequence[str | Request]], markup: MarkupConfig, stream: Stream, done: int = 0
) -> Iterator[Translation]:
    """Yield one translation for each line, in order, but skip the first `done` lines.

    The candidate of a line joins the tokens and log-probabilities of its segments.
    """
    waiting = deque[_Line]()

    def requests() -> Iterator[list[Request]]:
        nonlocal done
        for chunk in lines:
            if len(chunk) > done:
                waiting.extend(_Line(line, markup) for line in chunk)
                yield [request for line in waiting for request in line.requests]
            else:
                done -= len(chunk)

    translations = stream(requests())
    for first in translations:
        line = waiting.popleft()
        translation = line.translation([first, *islice(translations, len(line.requests) - 1)])
        if not done:
            yield translation
        done = max(0, done - 1)


class _Line:
    """A line with a request for each of its segments. A line without segments has a blank request."""

    def __init__(self, line: str | Request, markup: MarkupConfig) -> None:
        base = Request(line) if isinstance(line, str) else line
        self._text = base.text
        self._document = read_line(base.text, markup.markup, Options(kept=markup.kept))
        self._prepared = Prepared(self._document, markup.patterns)
        segments = self._prepared.segments or [Segment(())]
        self.requests = [replace(base, text=segment.text, segment=segment) for segment in segments]

    def translation(self, found: Sequence[Translation]) -> Translation:
        best = [translation.candidates[0] for translation in found]
        segments = [candidate.segment for candidate in best if candidate.segment is not None]
        candidate = Candidate(
            self._document.text(self._prepared.finished(segments[: len(self._prepared.segments)])),
            sum(candidate.score for candidate in best),
            tuple(chain.from_iterable(candidate.tokens for candidate in best)),
            tuple(chain.from_iterable(candidate.token_log_probs for candidate in best)),
        )
        ids = tuple(chain.from_iterable(translation.source_ids for translation in found))
        return Translation(self._text, (candidate,), source_ids=ids)
