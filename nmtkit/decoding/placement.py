"""Aligns a segment with its translation, to place its tags.

Units are words of the raw text, as `nmtkit.text.segment.words` counts them; in scripts without spaces they are pieces.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, chain, groupby, pairwise
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.alignment import balance
from nmtkit.decoding.overlong import spaces
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import Sentence
from nmtkit.text.languages import UNSPACED_LETTER
from nmtkit.text.segment import Segment, Span, place, words
from nmtkit.text.tokenizer import Tokenizer


class SegmentPlacement:
    """Places the tags of a sentence's segment in its translations."""

    def __init__(self, segment: Segment, sentence: Sentence, source: Tokenizer) -> None:
        self.segment, self._sentence = segment, sentence
        self._starts = sentence.starts or (0,) * len(sentence.tasks)
        self._tag = len(sentence.tag) + sentence.own_tag
        self._pieces: list[list[Span]] = []  # of each task
        text = sentence.text
        for start, group in groupby(zip(self._starts, sentence.tasks, strict=True), key=lambda pair: pair[0]):
            each = [task.source[self._tag : -1] for _, task in group]
            end = next((other for other in self._starts if other > start), len(text))
            surfaces = source.surfaces([*chain(*each)], text[start:end])
            spans = iter(piece_spans(surfaces, text[start:end]))
            self._pieces += [[(start + a, start + b) for a, b in (next(spans) for _ in ids)] for ids in each]
        self._units = units_of(text, chain(*self._pieces))

    def place(self, parts: Sequence[Hypothesis], texts: Sequence[str], target: Tokenizer) -> Segment:
        """Return the segment with the translated `texts` of its parts. Without attention, tags go to the edges."""
        frame = self._sentence.frame or ("", "")
        before = spaces(texts, self._sentence.frame)
        ends = [*accumulate(map(len, chain(*zip(before, texts, strict=True))))][1::2]
        translation = "".join(chain(*zip(before, texts, strict=True))) + frame[-1]
        starts = [end - len(text) for end, text in zip(ends, texts, strict=True)]
        pieces = [
            [(start + a, start + b) for a, b in piece_spans(target.surfaces(part.ids), text)]
            for part, text, start in zip(parts, texts, starts, strict=True)
        ]
        units = units_of(translation, chain(*pieces))
        links = set(self._copied(units, [*starts, len(translation)]))
        for part, own, theirs in zip(parts, self._pieces, pieces, strict=True):
            if part.attention is not None and own and theirs:
                attention = part.attention[:-1, self._tag : -1].T
                links.update(_links(_membership(own, self._units).T @ attention @ _membership(theirs, units)))
        return place(self.segment, translation, links, self._units, units)

    def _copied(self, units: Sequence[Span], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the alignment of untranslated text, at the starts and ends of parts and of the whole text."""
        text = self._sentence.text
        for copy, own, other in zip(self._sentence.frame, [*self._starts, len(text)], starts, strict=False):
            sources = [
                number for number, (start, end) in enumerate(self._units) if own - len(copy) <= start < end <= own
            ]
            targets = [number for number, (start, end) in enumerate(units) if other - len(copy) <= start < end <= other]
            if len(sources) == len(targets):
                yield from zip(sources, targets, strict=True)


def piece_spans(surfaces: Sequence[str], text: str) -> list[Span]:
    """Return the span of each piece in a text. `surfaces` is the text that each piece adds.

    The text may continue after the pieces. Unknown pieces, and pieces whose characters the text lacks, get the span
    between their neighbors. A piece that adds only a space, or nothing, gets the span of the next piece.
    """
    own = [(char, number) for number, surface in enumerate(surfaces) for char in _normalized(surface)]
    theirs = [(char, at) for at, raw in enumerate(text) for char in _normalized(raw)]
    characters, raw = "".join(char for char, _ in own), "".join(char for char, _ in theirs)
    blocks = [(0, 0, len(characters))]
    if not raw.startswith(characters):
        blocks = [(a, b, size) for a, b, size in SequenceMatcher(None, characters, raw, False).get_matching_blocks()]
    first, last = dict[int, int](), dict[int, int]()
    for a, b, size in blocks:
        for (_, number), (_, at) in zip(own[a : a + size], theirs[b : b + size], strict=True):
            first.setdefault(number, at)
            last[number] = at + 1
    spans, end = list[Span](), max(last.values(), default=0)
    for number in reversed(range(len(surfaces))):
        if number in last:
            spans.append((first[number], last[number]))
        elif _normalized(surfaces[number]):
            before = next((last[n] for n in range(number - 1, -1, -1) if n in last), 0)
            spans.append((before, spans[-1][0] if spans else len(text)))
        else:
            spans.append(spans[-1] if spans else (end, end))
    return spans[::-1]


def _normalized(text: str) -> str:
    return "".join(normalize("NFKC", text).casefold().split())


def units_of(text: str, pieces: Iterable[Span]) -> list[Span]:
    """Return the words of a text, merged where a piece crosses a word boundary.

    In scripts without spaces, words are split where a piece starts.
    """
    pieces = sorted({(start, end) for start, end in pieces if start < end})
    starts = [start for start, _ in pieces]
    units: list[Span] = []
    for start, end in words(text):
        inside = starts[bisect_right(starts, start) : bisect_left(starts, end)]
        for a, b in pairwise([start, *(cut for cut in inside if UNSPACED_LETTER.search(text[cut - 1 : cut + 1])), end]):
            before = bisect_left(starts, units[-1][1]) if units else 0
            if before and pieces[before - 1][1] > a:
                units[-1] = units[-1][0], b
            else:
                units.append((a, b))
    return units


def _membership(pieces: Sequence[Span], units: Sequence[Span]) -> NDArray[np.float32]:
    """Return (P, U), whether each piece has characters of each unit."""
    first, last = np.array(pieces).reshape(-1, 2).T
    start, end = np.array(units).reshape(-1, 2).T
    overlaps: NDArray[np.float32] = ((first[:, None] < end) & (start < last[:, None])).astype(np.float32)
    return overlaps


def _links(attention: NDArray[np.float32]) -> Iterator[tuple[int, int]]:
    """Yield pairs of units that are linked from both sides, from attention (source, target units).

    A unit without such a pair gets its own link if the other unit has no pair either.
    """
    if not attention.any():
        return
    attended, attending = (np.flatnonzero(attention.any(axis)) for axis in (1, 0))  # units of this part
    weights = balance(attention[np.ix_(attended, attending)].T)
    forward = {*zip(attended[weights.argmax(1)].tolist(), attending.tolist(), strict=True)}
    backward = {*zip(attended.tolist(), attending[weights.argmax(0)].tolist(), strict=True)}
    mutual = forward & backward
    sources, targets = ({pair[side] for pair in mutual} for side in (0, 1))
    yield from mutual
    yield from ((i, j) for i, j in forward ^ backward if i not in sources and j not in targets)
