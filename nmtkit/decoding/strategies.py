"""Strategies of the search: beam search, diverse groups and sampling choose the next tokens of a step.

The P slots of a sentence are divided into banks of `width` slots, and each bank is filled separately.
Letters: b sentences, P slots, R rows (open hypotheses, in decoder order), W vocabulary, c candidates of a row, t tokens
so far.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nmtkit.decoding.config import SearchConfig
from nmtkit.inference.arrays import Bools, Floats, Ints
from nmtkit.inference.top_k import top_k

N = TypeVar("N", bound=np.generic)


class Frontier(NamedTuple):
    """The open hypotheses before a step."""

    log_probs: Floats  # (b, P) log P of the hypothesis in each slot, -inf for an empty slot
    vacant: Bools  # (b, P) True for the slots that the next hypotheses may take
    slots: Ints  # (R,) slot of each row, counted over all sentences: index in b · P + slot
    sentences: Ints  # (b,) index into `src`
    histories: Ints  # (t, b · P) tokens of each slot

    @property
    def length(self) -> int:
        """The number t of tokens so far."""
        return len(self.histories)

    @property
    def tokens(self) -> Ints:
        """The tokens (R, t) of each row."""
        tokens: Ints = self.histories[:, self.slots].T
        return tokens

    @property
    def index_of_row(self) -> Ints:
        """The index (R,) of each row's sentence among the b sentences in the batch."""
        index: Ints = self.slots // self.log_probs.shape[1]
        return index

    @property
    def sentence_of_row(self) -> Ints:
        """The index (R,) of each row's sentence in `src`."""
        return self.sentences[self.index_of_row]

    def by_slot(self, x: NDArray[N], missing: float) -> NDArray[N]:
        """Scatter x (R, c) to (b, P, c), with `missing` in empty slots."""
        if len(x) < self.log_probs.size:
            rows, x = x, np.full((self.log_probs.size, x.shape[1]), missing, x.dtype)
            x[self.slots] = rows
        return x.reshape(*self.log_probs.shape, -1)

    def totals(self, steps: Floats) -> Floats:
        """Return log P (b, P, c) of hypotheses extended by candidates whose log-probabilities are steps (R, c)."""
        if len(steps) == self.log_probs.size:
            return self.log_probs[..., None] + steps.reshape(*self.log_probs.shape, -1)
        return self.by_slot(self.log_probs.ravel()[self.slots, None] + steps, -np.inf)


class Selection(NamedTuple):
    """The candidates of a step, and which are chosen. A slot without a candidate has the total -inf."""

    steps: Floats  # (R, c) log-probability of each candidate
    tokens: Ints  # (R, c) token of each candidate
    totals: Floats  # (b, P) log P of the chosen candidate of each slot
    chosen: Ints  # (b, P) index of the chosen candidate: slot of its prefix · c + candidate


class Strategy(Protocol):
    """Chooses which candidates continue the search at each step."""

    slots: int  # of a sentence
    width: int  # slots of a bank
    starts: Sequence[int]  # slots of the empty hypothesis before the first step

    def choose(self, log_probs: Floats, frontier: Frontier) -> Selection:
        """Choose a candidate for each vacant slot, given log_probs (R, W), which may be modified."""


class BeamSearch:
    """Chooses the K = `beam` best candidates of all hypotheses of a sentence."""

    def __init__(self, beam: int) -> None:
        self.slots = self.width = beam
        self.starts: Sequence[int] = (0,)

    def choose(self, log_probs: Floats, frontier: Frontier) -> Selection:
        return self.choose_among(*top_k(log_probs, self.slots), frontier)

    def choose_among(self, steps: Floats, tokens: Ints, frontier: Frontier) -> Selection:
        """Choose like `choose`, given only the K best tokens of each row and their log-probabilities (R, K)."""
        totals = frontier.totals(steps).reshape(len(frontier.log_probs), -1)
        if totals.shape[1] == 1:  # greedy: there is nothing to choose
            return Selection(steps, tokens, totals, np.zeros(totals.shape, np.int64))
        return Selection(steps, tokens, *top_k(totals, self.slots))


class DiverseBeamSearch(BeamSearch):
    """Diverse beam search with Hamming diversity (Vijayakumar et al. 2018): chooses the K / G best in each of G groups.

    A candidate loses `strength` for each hypothesis of an earlier group that takes the same token at this step. Totals
    do not include this penalty.
    """

    def __init__(self, beam: int, groups: int, strength: float) -> None:
        super().__init__(beam)
        self.width, self.strength = beam // groups, strength
        self.starts = range(0, beam, self.width)

    def choose_among(self, steps: Floats, tokens: Ints, frontier: Frontier) -> Selection:
        """Choose among the K best tokens of each row (R, K). They are enough, because earlier groups take fewer."""
        b, c = len(frontier.log_probs), steps.shape[1]
        totals = frontier.totals(steps).reshape(b, -1)
        tokens_of_all = frontier.by_slot(tokens, -1).reshape(b, -1)
        taken = tokens_of_all[:, :0]
        chosen = []
        for start in self.starts:
            group = slice(start * c, (start + self.width) * c)
            repetitions = (tokens_of_all[:, group, None] == taken[:, None]).sum(2)
            _, index = top_k(totals[:, group] - np.float32(self.strength) * repetitions.astype(np.float32), self.width)
            index += start * c
            chosen.append(index)
            real = frontier.vacant[:, start : start + self.width] & (np.take_along_axis(totals, index, 1) > -np.inf)
            taken = np.concatenate([taken, np.where(real, np.take_along_axis(tokens_of_all, index, 1), -2)], 1)
        index = np.concatenate(chosen, 1)
        return Selection(steps, tokens, np.take_along_axis(totals, index, 1), index)


class Sampling:
    """Draws N = `nbest` independent samples. The random numbers depend only on the seed, the source sentence and N."""

    def __init__(self, config: SearchConfig, src: Ints, lengths: Ints, longest: int) -> None:
        """Prepare random numbers for src (B, S) with lengths (B,) and outputs of at most `longest` tokens with EOS."""
        self.config, self.slots, self.width = config, config.nbest, 1
        self.starts: Sequence[int] = range(config.nbest)
        shape = (longest, self.slots)
        sentences = [row[:length] for row, length in zip(src, lengths, strict=True)]
        # (B, longest, N) uniform in [0, 1)
        self.numbers = np.stack([_numbers(config.seed, sentence).random(shape) for sentence in sentences])

    def choose(self, log_probs: Floats, frontier: Frontier) -> Selection:
        weights = self._shares(log_probs).cumsum(1, np.float64)  # in vocabulary order: rounding cannot change it
        sample = frontier.slots % self.slots
        draws = self.numbers[frontier.sentence_of_row, frontier.length, sample] * weights[:, -1]
        drawn = [row.searchsorted(draw, side="right") for row, draw in zip(weights, draws, strict=True)]
        tokens = np.minimum(drawn, log_probs.shape[1] - 1)[:, None]  # smaller, but if no probability is finite
        steps = np.take_along_axis(log_probs, tokens, 1)
        totals = frontier.totals(steps).reshape(frontier.log_probs.shape)
        return Selection(steps, tokens, totals, np.broadcast_to(np.arange(self.slots), totals.shape))

    def _shares(self, log_probs: Floats) -> Floats:
        """Compute unnormalized probabilities (R, W) to draw each token, after temperature, top-k and top-p."""
        scaled = log_probs / np.float32(self.config.temperature)
        if self.config.top_k is not None:
            scaled[scaled < top_k(scaled, self.config.top_k)[0][:, -1:]] = -np.inf
        with np.errstate(invalid="ignore"):  # if no probability is finite
            shares: Floats = np.exp(scaled - scaled.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        if self.config.top_p is not None:
            ordered = np.sort(shares, 1)[:, ::-1]
            # the total probability of more probable tokens
            before = ordered.cumsum(1, np.float64).astype(np.float32) - ordered
            least = np.where(before >= self.config.top_p, np.float32(np.inf), ordered).min(1, keepdims=True)
            shares[shares < least] = 0.0
        return shares


def _numbers(seed: int, sentence: Ints) -> "np.random.Generator":  # imported late by numpy
    """Create the random number generator of a sentence, independent of its padding and batch."""
    key = hashlib.blake2b(sentence.astype("<i8").tobytes(), digest_size=16, key=seed.to_bytes(16, "little")).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
