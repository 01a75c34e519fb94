"""Subword regularization: samples a new segmentation of each sentence every epoch.

With a BPE model, this is BPE-dropout (Provilkov et al. 2020, algorithm 1). With a unigram model, texts are segmented
with probabilities to the power of α, renormalized (Kudo 2018). Samples are a pure function of seed, epoch and
sentence. SentencePiece can sample too, but its random state depends on everything that a thread has encoded before.
"""

import math
import operator
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby

from nmtkit.errors import UserError
from nmtkit.text.spm_model import ModelType, PieceType, read_model
from nmtkit.text.tokenizer import SENTENCEPIECE_KINDS, Tokenizer
from nmtkit.text.vocabulary import UNK

Draw = Callable[[], float]  # a random number in [0, 1)
# Samples ids for a word, or for a text if pieces can span words; None if a piece is not in the vocabulary.
Segmenter = Callable[[str, Draw], Sequence[int] | None]
Scores = dict[str, tuple[float, int]]  # score and id of each normal piece

_MAX_CACHED_CHARACTERS = 32  # longer words rarely occur again
_MAX_CACHED = 1 << 18  # words or partial segmentations, about 120 MB


class Resegmenter:
    """Samples new segmentations of ids, using the pieces of their SentencePiece model.

    Unknown tokens, byte pieces, user-defined symbols and language tags are kept. Raises UserError for other tokenizers.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        if tokenizer.kind not in SENTENCEPIECE_KINDS:
            raise UserError(
                f"--subword-sampling needs a SentencePiece model, but the dataset's tokenizer is {tokenizer.kind}: "
                "omit the option, or learn a model with nmt-preprocess"
            )
        model_type, pieces = read_model(tokenizer.model)
        if model_type not in (ModelType.BPE, ModelType.UNIGRAM):
            raise UserError(
                f"--subword-sampling: the dataset's SentencePiece model is of type {model_type.name.lower()}, which "
                "has only one segmentation per text: omit the option, or preprocess with a different model"
            )
        self._pieces = tokenizer.vocab.pieces
        normal = [piece for piece in pieces if piece.type == PieceType.NORMAL]
        ids = tokenizer.vocab.to_ids(piece.text for piece in normal)  # UNK for pieces that the vocabulary lacks
        scores = {piece.text: (piece.score, number) for piece, number in zip(normal, ids, strict=True)}
        self._fixed = set(range(len(self._pieces))) - {number for _, number in scores.values()}
        self._segment: Segmenter = (
            BPEDropout(scores, rate) if model_type == ModelType.BPE else UnigramSampling(scores, rate)
        )
        within_words = all("▁" not in piece[1:] for piece in scores)
        self._words = re.compile("▁[^▁]*|[^▁]+" if within_words else ".+", re.DOTALL)

    def __call__(self, ids: Sequence[int], draw: Draw) -> list[int]:
        """Sample a new segmentation of the text of these ids."""
        if self._fixed.isdisjoint(ids):
            return self._redraw(ids, draw)
        drawn: list[int] = []
        for is_fixed, run_ids in groupby(ids, self._fixed.__contains__):
            run = list(run_ids)
            drawn += run if is_fixed else self._redraw(run, draw)
        return drawn

    def _redraw(self, ids: Sequence[int], draw: Draw) -> list[int]:
        drawn: list[int] = []
        for word in self._words.findall("".join([self._pieces[number] for number in ids])):
            segmented = self._segment(word, draw)
            if segmented is None or UNK in segmented:
                return list(ids)
            drawn += segmented
        return drawn


class _MergeState:
    """A word after some BPE merges.

    `merges` are the positions of pieces that can be merged with the next one, by decreasing score, then from left to
    right. `successors` caches the states after these merges, and `ids` the ids of the pieces.
    """

    __slots__ = ("ids", "merges", "pieces", "successors")

    def __init__(self, pieces: tuple[str, ...], scores: Scores) -> None:
        self.pieces = pieces
        merged = map(operator.add, pieces, pieces[1:])
        ranked = [(-scores[piece][0], position) for position, piece in enumerate(merged) if piece in scores]
        self.merges = [position for _, position in sorted(ranked)]
        self.successors: dict[int, _MergeState] = {}
        self.ids: list[int] | None = None


class BPEDropout:
    """BPE-dropout: at each step, every possible merge is dropped with probability `rate`, and the best remaining one
    applied. If none remains, the word is finished."""

    def __init__(self, scores: Scores, rate: float) -> None:
        self._scores, self._rate = scores, rate
        self._words: dict[str, _MergeState] = {}
        self._states = 0  # number of cached states

    def __call__(self, text: str, draw: Draw) -> list[int] | None:
        if self._states > _MAX_CACHED:  # checked at every word, since cached words also get new successors
            self._words, self._states = {}, 0
        state = self._words.get(text) or self._characters(text)
        rate = self._rate
        while True:
            for position in state.merges:
                if draw() >= rate:
                    state = state.successors.get(position) or self._merge(state, position)
                    break
            else:
                break
        if state.ids is None and all(piece in self._scores for piece in state.pieces):
            state.ids = [self._scores[piece][1] for piece in state.pieces]
        return state.ids

    def _characters(self, text: str) -> _MergeState:
        state = _MergeState(tuple(text), self._scores)
        if len(text) <= _MAX_CACHED_CHARACTERS:
            self._words[text] = state
            self._states += 1
        return state

    def _merge(self, state: _MergeState, position: int) -> _MergeState:
        left, right = state.pieces[position : position + 2]
        successor = _MergeState((*state.pieces[:position], left + right, *state.pieces[position + 2 :]), self._scores)
        state.successors[position] = successor
        self._states += 1
        return successor


# The pieces that can end at a position of a text: their beginnings, their ids, and the cumulative shares of the paths
# to this position that end with them.
_IncomingEdges = tuple[list[int], list[int], list[float]]


class UnigramSampling:
    """Samples from all segmentations with their probabilities to the power of `rate`, renormalized: sums over paths
    from the start (forward filtering), then draws pieces from the end (backward sampling)."""

    def __init__(self, scores: Scores, rate: float) -> None:
        self._scores, self._rate = scores, rate
        self._longest = max(map(len, scores))
        self._lattices: dict[str, list[_IncomingEdges]] = {}

    def __call__(self, text: str, draw: Draw) -> list[int] | None:
        lattice = self._lattices.get(text) or self._lattice(text)
        drawn: list[int] = []
        end = len(text)
        while end:
            begins, ids, shares = lattice[end]
            if not begins:
                return None
            drawn_edge = min(bisect(shares, draw()), len(ids) - 1)
            drawn.append(ids[drawn_edge])
            end = begins[drawn_edge]
        return drawn[::-1]

    def _lattice(self, text: str) -> list[_IncomingEdges]:
        weights = [0.0]  # log-sum-exp over all paths to each position
        lattice: list[_IncomingEdges] = [([], [], [])]
        for end in range(1, len(text) + 1):
            found = [
                (begin, *self._scores[text[begin:end]])
                for begin in range(max(0, end - self._longest), end)
                if text[begin:end] in self._scores and weights[begin] > -math.inf
            ]
            logs = [weights[begin] + self._rate * score for begin, score, _ in found]
            maximum = max(logs, default=0.0)
            total = sum(math.exp(log - maximum) for log in logs)
            weights.append(maximum + math.log(total) if found else -math.inf)
            shares = accumulate(math.exp(log - weights[end]) for log in logs)
            lattice.append(([begin for begin, _, _ in found], [number for *_, number in found], list(shares)))
        if len(text) <= _MAX_CACHED_CHARACTERS:
            if len(self._lattices) > _MAX_CACHED:
                self._lattices = {}
            self._lattices[text] = lattice
        return lattice
