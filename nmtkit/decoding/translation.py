"""What a line becomes: text, scores and alignments, of the hypotheses that were found for it or for its parts."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.overlong import join
from nmtkit.decoding.search import Hypothesis
from nmtkit.tokenizer import Tokenizer, join_subwords
from nmtkit.vocab import EOS, SPECIALS, UNK


@dataclass(frozen=True)
class Candidate:
    """One translation of a line.

    `tokens` are the pieces with `</s>` at their end, `token_log_probs` the log-probability of each, and `score` is
    their sum over the length penalty. A blank line's translation has no tokens and the score 0. What was joined from
    parts has a `</s>` behind each, and the sum of their scores.

    Where alignments are asked for, `attention` (tokens, source tokens with `</s>`) tells how much each token attended
    to each of the source, 1 in all, and `alignment` has pairs of words, source and target, counted from 0: each target
    word with the source word that its pieces attended to most. What was joined from parts has no attention.
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    alignment: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Translation:
    """What one line became: up to `nbest` candidates, at least one, best first. The tokens of the source, with `</s>`,
    are there where alignments are asked for; `source_ids` are those that the model was given, without."""

    source: str
    candidates: tuple[Candidate, ...]
    source_tokens: tuple[str, ...] | None = None
    source_ids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The best translation, without line breaks."""
        return self.candidates[0].text


@dataclass(frozen=True)
class SourcePieces:
    """The pieces of a line that is aligned: as text, the number of the word that each belongs to, and the first of each
    part of the line that was translated by itself."""

    texts: Sequence[str]
    words: Sequence[int]
    parts: Sequence[int]


def word_numbers(surfaces: Sequence[str]) -> list[int]:
    """The number of the word, from 0, that each piece ends in; `surfaces` are what the pieces add to the text.

    What adds but a space, or nothing yet, as the first bytes of a character, belongs to the word that follows.
    """
    ends = accumulate(map(len, surfaces))
    starts = [word.start() for word in re.finditer(r"\S+", "".join(surfaces))]
    counts = (
        bisect_left(starts, end) if surface.strip() else bisect_right(starts, end)
        for surface, end in zip(surfaces, ends, strict=True)
    )
    return [max(0, count - 1) for count in counts]


def compose(
    parts: Sequence[Hypothesis], target: Tokenizer, config: SearchConfig, source: SourcePieces | None
) -> Candidate:
    """The candidate that a hypothesis for each part of a line is.

    The source's pieces are needed where `config` asks for alignments, or for copies of what is unknown.
    """
    if config.copy_unknown and source is not None:
        starts = zip(parts, source.parts, strict=True)
        texts = [_with_copies(part, source.texts[start:], target) for part, start in starts]
    else:
        texts = [target.decode(part.ids) for part in parts]
    aligned = source if config.alignment else None
    return Candidate(
        join(texts),
        sum(part.score for part in parts),
        tuple(token for part in parts for token in (*target.vocab.to_pieces(part.ids), SPECIALS[EOS])),
        tuple(log_prob for part in parts for log_prob in part.token_log_probs),
        parts[0].attention if aligned and len(parts) == 1 else None,
        _alignment(parts, target, aligned) if aligned else None,
    )


def different_texts(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first candidate of each text: joined parts and copied words can repeat one that the search did not."""
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.text, candidate)
    return tuple(first.values())


def _with_copies(part: Hypothesis, source: Sequence[str], target: Tokenizer) -> str:
    """The text of a part; where the unknown piece stands, the source's piece that it attended to most."""
    pieces = target.vocab.to_pieces(part.ids)
    if UNK in part.ids and source and part.attention is not None:
        best = part.attention[:, :-1].argmax(1)
        pieces = [source[best[n]] if piece == SPECIALS[UNK] else piece for n, piece in enumerate(pieces)]
    return join_subwords(" ".join(pieces))


def _alignment(parts: Sequence[Hypothesis], target: Tokenizer, source: SourcePieces) -> tuple[tuple[int, int], ...]:
    pairs: list[tuple[int, int]] = []
    words_before = 0
    for part, start in zip(parts, source.parts, strict=True):
        assert part.attention is not None
        attention = part.attention[:-1, :-1]
        target_words = word_numbers(target.surfaces(part.ids))
        if attention.size:
            own = align_words(attention, source.words[start : start + attention.shape[1]], target_words)
            pairs += [(i, words_before + j) for i, j in own]
        words_before += target_words[-1] + 1 if target_words else 0
    return tuple(pairs)


def align_words(
    attention: NDArray[np.float32], source_words: Sequence[int], target_words: Sequence[int]
) -> list[tuple[int, int]]:
    """For each target word the source word that has most of its pieces' attention (T, S); both count from 0."""
    source_starts, target_starts = (
        np.flatnonzero(np.diff(words, prepend=words[0] - 1)) for words in (source_words, target_words)
    )
    mass = np.add.reduceat(np.add.reduceat(attention, source_starts, axis=1), target_starts, axis=0)
    best = source_starts[mass.argmax(1)].tolist()
    return [(source_words[i], target_words[j]) for i, j in zip(best, target_starts.tolist(), strict=True)]
