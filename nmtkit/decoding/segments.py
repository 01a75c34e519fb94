"""Translates segments with inline tags: sentence by sentence, with each tag at the words that its words are aligned to.

Positions are characters.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.overlong import join
from nmtkit.decoding.translation import Translation, surfaces_of, word_attention
from nmtkit.text.segment import Segment, Span, Tag, has_letters, is_apart, place, words
from nmtkit.text.sentences import split_sentences
from nmtkit.text.tokenizer import Tokenizer


class Sides(Protocol):
    """The tokenizers and languages of a `Translator`."""

    source: Tokenizer
    target: Tokenizer
    languages: tuple[str, str]


@dataclass
class Sentence:
    """A sentence of a segment, without the white space around it."""

    text: str
    start: int  #: in the segment
    translation: Translation | None = None  #: None if it is copied

    @property
    def target(self) -> str:
        return self.text if self.translation is None else self.translation.text


class Sentences:
    """The sentences of segments, which are translated one by one; sentences without letters are copied."""

    def __init__(self, sides: Sides, segments: Sequence[Segment], splits: bool = True) -> None:
        """Without `splits`, a segment is one sentence."""
        self._sides, self._segments = sides, segments
        self._divided = [_sentences(segment, sides.languages[0], splits) for segment in segments]

    def to_translate(self, is_tagged: bool | None = None) -> list[Sentence]:
        """The sentences with letters: all, or those of segments with or without tags, which need an alignment."""
        return [
            sentence
            for segment, sentences in zip(self._segments, self._divided, strict=True)
            for sentence in sentences
            if is_tagged in (None, has_tags(segment)) and has_letters(sentence.text)
        ]

    def results(self) -> list[Segment]:
        """The translated segments, once each sentence has its `translation`.

        The text of a result is the translation of the text of its segment, except for protected spans. Tags are placed
        by the attention of the translations; without it, they go around or behind the text.
        """
        return [_placed(self._sides, *each) for each in zip(self._segments, self._divided, strict=True)]


def has_tags(segment: Segment) -> bool:
    return any(isinstance(part, Tag) for part in segment.parts)


def _sentences(segment: Segment, language: str, splits: bool) -> list[Sentence]:
    text = segment.text
    parts = split_sentences(text, language, segment.protected) if splits else [text]
    starts = accumulate(map(len, parts), initial=0)
    return [
        Sentence(part.strip(), start + len(part) - len(part.lstrip()))
        for part, start in zip(parts, starts, strict=False)
        if part.strip()
    ]


def _placed(sides: Sides, segment: Segment, sentences: Sequence[Sentence]) -> Segment:
    """The translation of a segment with its tags."""
    text, ends = segment.text, [sentence.start + len(sentence.text) for sentence in sentences]
    frame = [text[end : sentence.start] for end, sentence in zip([0, *ends], sentences, strict=False)]
    targets = [sentence.target for sentence in sentences]
    target = join(targets, [*frame, text[ends[-1] if ends else 0 :]])
    if not has_tags(segment):
        return place(segment, target, ())
    source_units, target_units, pairs = list[Span](), list[Span](), list[tuple[int, int]]()
    end = 0
    for sentence in sentences:
        start = target.index(sentence.target, end)
        end = start + len(sentence.target)
        source, aligned, links = _alignment(sides, sentence)
        pairs += [(len(source_units) + i, len(target_units) + j) for i, j in links]
        source_units += [(sentence.start + a, sentence.start + b) for a, b in source]
        target_units += [(start + a, start + b) for a, b in aligned]
    return place(segment, target, pairs, source_units, target_units)


def _alignment(sides: Sides, sentence: Sentence) -> tuple[list[Span], list[Span], list[tuple[int, int]]]:
    """The units of a sentence and of its translation, and pairs of their numbers."""
    if sentence.translation is None:
        units = words(sentence.text)
        return units, units, [(number, number) for number in range(len(units))]
    translation, best = sentence.translation, sentence.translation.candidates[0]
    if best.attention is None:  # a sentence that was split, or without pieces
        return words(sentence.text), words(best.text), []
    ids = translation.source_ids[translation.tag_tokens :]
    source_surfaces = sides.source.surfaces(ids, translation.source)
    target_surfaces = surfaces_of(sides.target.vocab.to_ids(best.tokens[:-1]), best.text, sides.target)
    source, source_numbers = _units(source_surfaces, sentence.text)
    target, target_numbers = _units(target_surfaces, best.text)
    if not source or not target:
        return source, target, []
    attention = best.attention[:-1, translation.tag_tokens : -1]
    return source, target, _links(word_attention(attention, source_numbers, target_numbers))


def _links(attention: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Pairs (i, j) of source and target units that attend to each other most, by the attention (J, I).

    Units without such a pair are linked to the one that they attend to most if that has none either.
    """
    forward = [(int(i), j) for j, i in enumerate(attention.argmax(1))]
    backward = [(i, int(j)) for i, j in enumerate(attention.argmax(0))]
    mutual = [pair for pair in forward if pair in backward]
    sources, targets = ({pair[side] for pair in mutual} for side in (0, 1))
    return mutual + [(i, j) for i, j in {*forward, *backward} if i not in sources and j not in targets]


def _units(surfaces: Sequence[str], text: str) -> tuple[list[Span], list[int]]:
    """The smallest spans of a text that consist of whole words and of whole pieces, and the number of each piece's.

    In scripts without spaces, a piece is a unit. `surfaces` has the text that each piece adds, before or after
    normalization. A piece without text belongs to the next unit.
    """
    spans: list[Span] = []
    numbers: list[int] = []
    for start, end in _piece_spans(surfaces, text):
        is_new = start < end and (not spans or spans[-1][1] < start or is_apart(text, start, len(text)))
        if is_new:
            spans.append((start, end))
        elif start < end:
            spans[-1] = spans[-1][0], end
        numbers.append(len(spans) - 1 + (start == end))
    return spans, [min(number, len(spans) - 1) for number in numbers]


def _piece_spans(surfaces: Sequence[str], text: str) -> Iterator[Span]:
    """Where in a text each piece is, by its characters without white space; empty for a piece without any."""
    at = [index for index, character in enumerate(text) if not character.isspace()]
    added = ["".join(surface.split()) for surface in surfaces]
    ends = [*accumulate(map(len, added), initial=0)]
    pieces, given = "".join(added), "".join(text.split())
    if pieces != given:  # the tokenizer normalizes
        blocks = SequenceMatcher(None, pieces, given, autojunk=False).get_matching_blocks()
        starts = [block.a for block in blocks]
        ends = [_moved(end, blocks, starts) for end in ends]
    for first, last in pairwise(ends):
        yield (at[first], at[last - 1] + 1) if first < last else (0, 0)


def _moved(position: int, blocks: Sequence[tuple[int, int, int]], starts: Sequence[int]) -> int:
    """The position in the second text of a comparison for one in the first."""
    following = bisect_left(starts, position)
    if not following:
        return 0
    a, b, size = blocks[following - 1]
    return b + position - a if position <= a + size else blocks[following][1]
