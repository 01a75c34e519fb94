"""Turns hypotheses into the translation of a line: texts, scores and alignments."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.alignment import align_words
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.engine import Task
from nmtkit.decoding.overlong import join, separators
from nmtkit.decoding.placement import SegmentPlacement
from nmtkit.decoding.recasing import Recasing
from nmtkit.decoding.repetition import repeated_ngram
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.stand_ins import once
from nmtkit.decoding.tasks import Sentence
from nmtkit.text.moses_bpe import respaced
from nmtkit.text.segment import Segment
from nmtkit.text.tokenizer import SPACE, Tokenizer, join_subwords
from nmtkit.text.vocabulary import EOS, SPECIALS, UNK


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    `tokens` ends with `</s>`, `token_log_probs` are the log-probabilities of the tokens, and `score` is their sum
    divided by the length penalty. The translation of a blank line has no tokens and the score 0. For a line that was
    split, each part ends with `</s>`, and the score is the sum of the scores of the parts.

    With alignments, `attention` (tokens, source tokens with `</s>`) contains the weights of each token, which sum to 1;
    a line that was split has no attention. `alignment` lists pairs of source and target words, counted from 0. Each
    target word is paired with one source word, never with a tag (see `alignment.align_words`). A tag that is part of
    the line counts as a word. `segment` contains the text with the tags of a request's segment.
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    alignment: tuple[tuple[int, int], ...] | None = None
    cut: bool | None = None  #: True if the output ended at its maximum length
    repetitive: bool | None = None  #: True if it repeats a phrase that the source does not repeat
    segment: Segment | None = None


@dataclass(frozen=True)
class Translation:
    """The translation of a line: at least one candidate, at most `nbest`, best first."""

    source: str
    candidates: tuple[Candidate, ...]
    source_tokens: tuple[str, ...] | None = None  #: with the tag and `</s>`; only with alignments
    source_ids: tuple[int, ...] = ()  #: of the tokens that the model was given, without `</s>`
    tag_tokens: int = 0  #: of a tag, at the beginning of `source_tokens`
    target_start: tuple[int, ...] = ()  #: ids that the decoder was given before the translation

    @property
    def text(self) -> str:
        """The best translation, without line breaks."""
        return self.candidates[0].text

    @property
    def segment(self) -> Segment:
        """The best translation with the tags of its request. Each tag occurs once, and pairs remain nested."""
        return self.candidates[0].segment or Segment((self.text,))


@dataclass(frozen=True)
class SourcePieces:
    """The source pieces of a line, for alignments."""

    texts: Sequence[str]
    words: Sequence[int]  #: the number of the word of each piece
    parts: Sequence[int]  #: the first piece of each part of the line that was translated by itself
    tag: int = 0  #: number of tag pieces before each part


def word_numbers(surfaces: Sequence[str]) -> list[int]:
    """Return the number of the word, from 0, that each piece ends in. `surfaces` is the text that each piece adds.

    A piece that adds only a space, or nothing, such as the first bytes of a character, belongs to the next word.
    """
    ends = accumulate(map(len, surfaces))
    starts = [word.start() for word in re.finditer(r"\S+", "".join(surfaces))]
    counts = (
        bisect_left(starts, end) if surface.strip() else bisect_right(starts, end)
        for surface, end in zip(surfaces, ends, strict=True)
    )
    return [max(0, count - 1) for count in counts]


def translation_of(
    sentence: Sentence,
    found: Sequence[list[Hypothesis]],
    source: Tokenizer,
    target: Tokenizer,
    config: SearchConfig,
    positions: int | None = None,
) -> Translation:
    """Create the translation of a sentence from the hypotheses of each of its tasks, best first.

    If the line was split, the best hypotheses of all parts form the best candidate, and so on.
    """
    pieces = _source_pieces(sentence, source) if config.attends else None
    placement = SegmentPlacement(sentence.segment, sentence, source) if sentence.segment else None
    candidates: tuple[Candidate, ...] = ()
    for parts in zip(*found, strict=False):
        candidate = compose(parts, target, config, pieces, sentence.target, sentence.frame, placement)
        if sentence.target is None:
            both = list(zip(sentence.tasks, parts, strict=True))
            cut = any(len(part.ids) >= _longest(task, config, positions) for task, part in both)
            repetitive = any(repeated_ngram(task.source[:-1], part.ids) for task, part in both)
            candidate = replace(candidate, cut=cut or None, repetitive=repetitive or None)
        candidates += (candidate,)
    if sentence.line is not None:
        start, _, end = sentence.line.partition(sentence.line.strip())
        candidates = tuple(replace(each, text=start + each.text + end, segment=None) for each in candidates)
    if not candidates:
        segment = placement.place((), (), target) if placement else None
        blank = Candidate("".join(sentence.frame), alignment=() if config.alignment else None, segment=segment)
        candidates = (blank,)
    if sentence.recasing:
        candidates = tuple(_recased(each, sentence.recasing) for each in candidates)
    if not config.sampling:
        candidates = different_texts(candidates)
    tokens = (*source.vocab.to_pieces([*sentence.tag, *sentence.ids]), SPECIALS[EOS]) if config.alignment else None
    given = tuple(chain.from_iterable(task.source[:-1] for task in sentence.tasks))
    text = sentence.text if sentence.line is None else sentence.line
    text = sentence.recasing.given.text if sentence.recasing else text
    begin = sentence.tasks[0].start if sentence.tasks else ()
    return Translation(text, candidates, tokens, given, len(sentence.tag), begin)


def _recased(candidate: Candidate, recasing: Recasing) -> Candidate:
    if candidate.segment is None:
        return replace(candidate, text=recasing.restored(candidate.text))
    parts = (recasing.restored(part) if isinstance(part, str) else part for part in candidate.segment.parts)
    segment = Segment(tuple(parts), candidate.segment.movable)
    return replace(candidate, text=segment.plain, segment=segment)


def _longest(task: Task, config: SearchConfig, positions: int | None) -> int:
    return config.length_limit(len(task.source) - 1, task.constraints.required_tokens, positions)


def compose(
    parts: Sequence[Hypothesis],
    target: Tokenizer,
    config: SearchConfig,
    source: SourcePieces | None,
    given: str | None = None,
    frame: Sequence[str] = (),
    placement: SegmentPlacement | None = None,
) -> Candidate:
    """Create a candidate from one hypothesis for each part of a line. `source` is required if `config.attends`.

    Alignments count the words of the decoded text, or of the text that the user has `given`.
    """
    segmented = None  # the pieces of each part
    if config.copy_unknown and source is not None:
        starts = zip(parts, source.parts, strict=True)
        segmented = [" ".join(_with_copies(part, source.texts[start:], source.tag, target)) for part, start in starts]
        texts = [join_subwords(pieces) for pieces in segmented]
    else:
        texts = [target.decode(part.ids) for part in parts]
        texts = once(texts, placement.segment if placement else None, target.vocab)
    aligned = source if config.alignment else None
    placed = placement.place(parts, texts, target) if placement else None
    return Candidate(
        join(texts, frame) if placed is None else placed.plain,
        sum(part.score for part in parts),
        tuple(chain.from_iterable([*target.vocab.to_pieces(part.ids), SPECIALS[EOS]] for part in parts)),
        tuple(chain.from_iterable(part.token_log_probs for part in parts)),
        parts[0].attention if aligned and len(parts) == 1 else None,
        _alignment(parts, texts, segmented if given is None else [given], target, aligned) if aligned else None,
        segment=placed,
    )


def different_texts(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the first candidate of each text, because joining parts and copying words can give equal texts."""
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.text, candidate)
    return tuple(first.values())


def _with_copies(part: Hypothesis, source: Sequence[str], tag: int, target: Tokenizer) -> list[str]:
    """Return the pieces of a part, with each unknown piece replaced by the source piece that it attends to most.

    `tag` is the number of pieces of a tag, which precede those of `source`.
    """
    pieces = target.vocab.to_pieces(part.ids)
    if UNK in part.ids and source and part.attention is not None:
        best = part.attention[:, tag:-1].argmax(1)
        pieces = [source[best[n]] if piece == SPECIALS[UNK] else piece for n, piece in enumerate(pieces)]
    return pieces


def _source_pieces(sentence: Sentence, source: Tokenizer) -> SourcePieces:
    """Return the source pieces of a sentence. If pieces are words, their text comes from the input."""
    ids, words = sentence.ids, sentence.text.split()
    texts = words if source.kind == SPACE and len(words) == len(ids) else source.vocab.to_pieces(ids)
    tag = len(sentence.tag) + sentence.own_tag
    starts = list(accumulate((len(task.source) - tag - 1 for task in sentence.tasks), initial=sentence.own_tag))[:-1]
    return SourcePieces(texts, word_numbers(source.surfaces(ids, sentence.text)), starts, tag)


def _alignment(
    parts: Sequence[Hypothesis],
    texts: Sequence[str],
    spelled: Sequence[str] | None,
    target: Tokenizer,
    source: SourcePieces,
) -> tuple[tuple[int, int], ...]:
    """Align the words of a line. `texts` are its decoded parts, and `spelled` the text of their ids if it differs."""
    if spelled is None:
        added = [surfaces_of(part.ids, text, target) for part, text in zip(parts, texts, strict=True)]
    else:
        added = [target.surfaces(part.ids, text) for part, text in zip(parts, spelled, strict=True)]
    best: dict[int, tuple[float, int]] = {}  # target word -> the largest weight, and the source word that has it
    words_before = 0
    for part, surfaces, start, space in zip(parts, added, source.parts, separators(texts), strict=True):
        assert part.attention is not None
        attention = part.attention[:-1, source.tag : -1]
        if not any(map(str.strip, surfaces)):  # no word
            continue
        first = words_before - (words_before > 0 and not space)  # else the part continues a word of the one before
        target_words = [first + number for number in word_numbers(surfaces)]
        if attention.size:
            for weight, i, j in align_words(attention, source.words[start : start + attention.shape[1]], target_words):
                best[j] = max(best.get(j, (weight, i)), (weight, i), key=itemgetter(0))
        words_before = target_words[-1] + 1
    return tuple((i, j) for j, (_, i) in best.items())


def surfaces_of(ids: Sequence[int], text: str, target: Tokenizer) -> list[str]:
    """Return the text that each id of a hypothesis adds, with the spaces of the decoded text."""
    surfaces = target.surfaces(ids)
    if "\ufffd" not in text:  # bytes that spell no character are not in the text
        surfaces = [surface.replace("\ufffd", "") for surface in surfaces]
    known = ["" if number == UNK else surface for number, surface in zip(ids, surfaces, strict=True)]
    return respaced(surfaces, text) or respaced(known, text) or surfaces
