"""Subword regularization: the same text in other pieces, drawn anew for each sentence in every epoch.

For a BPE model this is BPE-dropout (Provilkov et al. 2020, algorithm 1); for a unigram model a segmentation is drawn
with its probability to the power of α, renormalized (Kudo 2018, all segmentations). What is drawn follows from seed,
epoch and sentence alone. SentencePiece can draw as well, but from one generator for all that a thread ever encodes.
"""

import math
import operator
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Indices, TokenFile
from nmtkit.data.corpus import Dataset, Split
from nmtkit.errors import UserError
from nmtkit.spm_model import ModelType, Piece, PieceType, read_model
from nmtkit.tokenizer import SPACE, Tokenizer
from nmtkit.vocab import EOS

Sentences = tuple[NDArray[np.int64], NDArray[np.int32]]  # tokens, lengths
Draw = Callable[[], float]  # a random number from 0 up to 1
Scores = dict[str, tuple[float, int]]  # of the pieces that text can be cut into: score and id

_REMEMBERED = 32  # characters of a word whose segmentations are remembered: longer ones seldom come again
_MOST_REMEMBERED = 1 << 18  # of them, some 120 MB


class Segmenter(Protocol):
    """Draws pieces for a text without white space within, or for any text where pieces reach across it."""

    def __call__(self, text: str, draw: Draw) -> Sequence[int] | None:
        """Ids of the pieces; None where what was drawn needs one that the vocabulary does not hold."""


class SubwordSampling:
    """The sentence pairs of a split, in pieces that are drawn anew in every epoch.

    `rate` is the share of merges that are dropped, or α. A sentence that would get longer than `longest` tokens, EOS
    counted, stays as it is stored. Raises UserError where there is no model to draw from.
    """

    def __init__(self, dataset: Dataset, split: Split, rate: float, longest: int, seed: int) -> None:
        self._longest, self._seed = longest, seed
        source = Resegmenter(dataset.source, rate)
        target = source if dataset.joined else Resegmenter(dataset.target, rate)
        self._sides = (split.source, source), (split.target, target)

    def gather(self, epoch: int, pairs: Indices) -> tuple[Sentences, Sentences]:
        """Source and target of several pairs: the tokens, one sentence after the other, and the length of each."""
        source: list[list[int]] = []
        target: list[list[int]] = []
        stored_sides = [_without_eos(file, pairs) for file, _ in self._sides]
        for number, pair in enumerate(pairs.tolist()):
            draw = Random((self._seed << 32 | epoch) << 64 | pair).random
            for drawn, sentences, (_, resegment) in zip((source, target), stored_sides, self._sides, strict=True):
                stored = sentences[number]
                ids = resegment(stored, draw)
                drawn.append([*(ids if len(ids) < self._longest else stored), EOS])
        return _concatenate(source), _concatenate(target)


def _without_eos(file: TokenFile, sentences: Indices) -> list[list[int]]:
    tokens, lengths = file.gather(sentences)
    return [sentence[:-1].tolist() for sentence in np.split(tokens, np.cumsum(lengths)[:-1])]


def _concatenate(sentences: list[list[int]]) -> Sentences:
    lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.int64, int(lengths.sum())), lengths


class Resegmenter:
    """Cuts the text of ids into other pieces of the same SentencePiece model.

    What no piece can spell, or only in one way, stays as it is: unknown tokens, bytes, symbols defined by the user.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        if tokenizer.kind == SPACE:
            raise UserError(
                "--subword-sampling: the dataset is of segmented text, which has no model to draw other pieces from: "
                "leave the option out, or preprocess raw text without --tokenizer space"
            )
        try:
            model_type, pieces = read_model(tokenizer.model)
        except ValueError as error:
            raise UserError(f"--subword-sampling: {error}") from error
        if model_type not in (ModelType.BPE, ModelType.UNIGRAM):
            raise UserError(
                f"--subword-sampling: the dataset's SentencePiece model is of type {model_type.name.lower()}, which "
                "knows one way to cut a text: leave the option out, or preprocess with another model"
            )
        self._pieces = tokenizer.vocab.pieces
        scores = _scores(pieces, tokenizer)
        self._fixed = set(range(len(self._pieces))) - {number for _, number in scores.values()}
        self._segment: Segmenter = (
            BPEDropout(scores, rate) if model_type == ModelType.BPE else UnigramSampling(scores, rate)
        )
        within_words = all("▁" not in piece[1:] for piece in scores)
        self._words = re.compile("▁[^▁]*|[^▁]+" if within_words else ".+", re.DOTALL)

    def __call__(self, ids: Sequence[int], draw: Draw) -> list[int]:
        """Another encoding of what these ids spell."""
        if self._fixed.isdisjoint(ids):
            return self._redraw(ids, draw)
        drawn: list[int] = []
        for is_fixed, run in groupby(ids, self._fixed.__contains__):
            part = list(run)
            drawn += part if is_fixed else self._redraw(part, draw)
        return drawn

    def _redraw(self, ids: Sequence[int], draw: Draw) -> list[int]:
        drawn: list[int] = []
        for word in self._words.findall("".join([self._pieces[number] for number in ids])):
            segmented = self._segment(word, draw)
            if segmented is None:
                return list(ids)
            drawn += segmented
        return drawn


def _scores(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Scores:
    ids = {piece: number for number, piece in enumerate(tokenizer.vocab.pieces)}
    return {piece.text: (piece.score, ids[piece.text]) for piece in pieces if piece.type == PieceType.NORMAL}


class _State:
    """A word on its way from characters to pieces.

    `merges` are the places of the pieces that can be merged with the next one, the highest score first and the leftmost
    of equal ones; `after` holds the states that follow them, as far as they have been drawn, `ids` the pieces' ids.
    """

    __slots__ = ("after", "ids", "merges", "pieces")

    def __init__(self, pieces: tuple[str, ...], scores: Scores) -> None:
        self.pieces = pieces
        merged = map(operator.add, pieces, pieces[1:])
        ranked = [(-scores[piece][0], place) for place, piece in enumerate(merged) if piece in scores]
        self.merges = [place for _, place in sorted(ranked)]
        self.after: dict[int, _State] = {}
        self.ids: list[int] | None = None


class BPEDropout:
    """Begins with characters; at each step every possible merge is dropped with a probability of `rate`, and the best
    of those left is done. Where none is left the word is finished."""

    def __init__(self, scores: Scores, rate: float) -> None:
        self._scores, self._rate = scores, rate
        self._words: dict[str, _State] = {}
        self._states = 0  # of those words, and that follow from them

    def __call__(self, text: str, draw: Draw) -> list[int] | None:
        if self._states > _MOST_REMEMBERED:  # asked for each word: those known since long still take other ways
            self._words, self._states = {}, 0
        state = self._words.get(text) or self._characters(text)
        rate = self._rate
        while True:
            for place in state.merges:
                if draw() >= rate:
                    state = state.after.get(place) or self._merge(state, place)
                    break
            else:
                break
        if state.ids is None and all(piece in self._scores for piece in state.pieces):
            state.ids = [self._scores[piece][1] for piece in state.pieces]
        return state.ids

    def _characters(self, text: str) -> _State:
        state = _State(tuple(text), self._scores)
        if len(text) <= _REMEMBERED:
            self._words[text] = state
            self._states += 1
        return state

    def _merge(self, state: _State, place: int) -> _State:
        left, right = state.pieces[place : place + 2]
        after = _State((*state.pieces[:place], left + right, *state.pieces[place + 2 :]), self._scores)
        state.after[place] = after
        self._states += 1
        return after


class _Arrivals(NamedTuple):
    """The pieces that may end at a place of a text: where each begins, its id, and the share of all ways to that place
    that end with it or with one before it."""

    begins: list[int]
    ids: list[int]
    shares: list[float]


class UnigramSampling:
    """Draws among all segmentations, each with its probability to the power of `rate`: sums forward, draws backward."""

    def __init__(self, scores: Scores, rate: float) -> None:
        self._scores, self._rate = scores, rate
        self._longest = max(map(len, scores))
        self._lattices: dict[str, list[_Arrivals]] = {}

    def __call__(self, text: str, draw: Draw) -> list[int] | None:
        lattice = self._lattices.get(text) or self._lattice(text)
        drawn: list[int] = []
        end = len(text)
        while end:
            begins, ids, shares = lattice[end]
            if not begins:
                return None
            choice = min(bisect(shares, draw()), len(ids) - 1)
            drawn.append(ids[choice])
            end = begins[choice]
        return drawn[::-1]

    def _lattice(self, text: str) -> list[_Arrivals]:
        weights = [0.0]  # the logarithm of the sum over all ways to each place
        lattice = [_Arrivals([], [], [])]
        for end in range(1, len(text) + 1):
            found = [
                (begin, *self._scores[text[begin:end]])
                for begin in range(max(0, end - self._longest), end)
                if text[begin:end] in self._scores and weights[begin] > -math.inf
            ]
            logs = [weights[begin] + self._rate * score for begin, score, _ in found]
            highest = max(logs, default=0.0)
            total = sum(math.exp(log - highest) for log in logs)
            weights.append(highest + math.log(total) if found else -math.inf)
            shares = accumulate(math.exp(log - weights[end]) for log in logs)
            lattice.append(_Arrivals([begin for begin, _, _ in found], [number for *_, number in found], list(shares)))
        if len(text) <= _REMEMBERED:
            if len(self._lattices) > _MOST_REMEMBERED:
                self._lattices = {}
            self._lattices[text] = lattice
        return lattice
