"""How a step of the search chooses among the tokens that may come next: the best, or drawn ones.

The P places of a sentence are cut into banks of `width` places each, and choices are made bank by bank.
Letters: b sentences, P places, R open hypotheses, W vocabulary, c candidates a hypothesis, t tokens so far.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nmtkit.decoding.config import SearchConfig
from nmtkit.inference.top_k import top_k


@dataclass(frozen=True)
class Frontier:
    """The hypotheses that go on, before a step."""

    log_probs: Tensor  # (b, P) of each place's hypothesis, -inf where there is none
    vacant: Tensor  # (b, P) True for the places that the next hypotheses may take
    rows: Tensor  # (R,) sentence · P + place, in the order of the decoder's rows
    sentences: Tensor  # (b,) the row of `src`
    histories: Tensor  # (b, P, t) tokens

    @property
    def tokens(self) -> Tensor:
        """(R, t)"""
        return self.histories.flatten(0, 1)[self.rows]

    @property
    def numbers(self) -> Tensor:
        """(R,) number of each hypothesis's sentence among the b."""
        return self.rows.div(self.log_probs.size(1), rounding_mode="floor")

    @property
    def owners(self) -> Tensor:
        """(R,) the row of `src` that each hypothesis translates."""
        return self.sentences[self.numbers]

    @property
    def places(self) -> Tensor:
        """(R,) place of each hypothesis in its sentence."""
        return self.rows.remainder(self.log_probs.size(1))

    def by_place(self, x: Tensor, missing: float) -> Tensor:
        """x (R, c) to (b, P, c), with `missing` where there is no hypothesis."""
        b, P = self.log_probs.shape
        if x.size(0) == b * P:
            return x.view(b, P, -1)
        placed = x.new_full((b * P, x.size(1)), missing)
        return placed.index_copy_(0, self.rows, x).view(b, P, -1)

    def totals(self, steps: Tensor) -> Tensor:
        """(b, P, c) log P of hypotheses with candidates whose own log-probabilities are steps (R, c)."""
        return self.by_place(self.log_probs.flatten()[self.rows].unsqueeze(1) + steps, -torch.inf)


@dataclass(frozen=True)
class Selection:
    """The candidates of a step and those that were chosen. A place that nothing can take has the total -inf."""

    steps: Tensor  # (R, c) log-probability of each candidate
    tokens: Tensor  # (R, c)
    totals: Tensor  # (b, P) log P of the chosen ones
    index: Tensor  # (b, P) which they are, place · c + candidate


class Strategy(Protocol):
    """How to go on. `starts` are the places in which the empty hypothesis stands at the beginning."""

    places: int
    width: int
    starts: Sequence[int]

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        """Choose for each vacant place, given the log-probabilities (R, W), which may be written over."""


class BeamSearch:
    """The K best candidates of all."""

    def __init__(self, beam: int) -> None:
        self.places = self.width = beam
        self.starts: Sequence[int] = (0,)

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        return self.choose_among(*top_k(log_probs, self.places), frontier)

    def choose_among(self, steps: Tensor, tokens: Tensor, frontier: Frontier) -> Selection:
        """The same, given the K best tokens of each hypothesis and their log-probabilities (R, K), which are enough."""
        return Selection(steps, tokens, *top_k(frontier.totals(steps).flatten(1), self.places))


class DiverseBeamSearch(BeamSearch):
    """The K / G best in each of G groups; a candidate loses `strength` for each earlier group's hypothesis that takes
    its token at this step (Vijayakumar et al. 2018, with Hamming diversity). Totals do not carry what is lost."""

    def __init__(self, beam: int, groups: int, strength: float) -> None:
        super().__init__(beam)
        self.width, self.strength = beam // groups, strength
        self.starts = range(0, beam, self.width)

    def choose_among(self, steps: Tensor, tokens: Tensor, frontier: Frontier) -> Selection:
        """As of `BeamSearch`: K are enough, as earlier groups take fewer."""
        c = steps.size(1)
        totals = frontier.totals(steps).flatten(1)
        tokens_of_all = frontier.by_place(tokens, -1).flatten(1)
        taken = tokens_of_all[:, :0]
        chosen = []
        for start in self.starts:
            group = slice(start * c, (start + self.width) * c)
            met = (tokens_of_all[:, group, None] == taken[:, None]).sum(2)
            index = (totals[:, group] - self.strength * met).topk(self.width).indices + start * c
            chosen.append(index)
            real = frontier.vacant[:, start : start + self.width] & (totals.gather(1, index) > -torch.inf)
            taken = torch.cat([taken, tokens_of_all.gather(1, index).masked_fill(~real, -2)], dim=1)
        index = torch.cat(chosen, dim=1)
        return Selection(steps, tokens, totals.gather(1, index), index)


class Sampling:
    """N outputs, each drawn for itself. The numbers behind the draws follow from the seed and the sentence."""

    def __init__(self, config: SearchConfig, src: Tensor, lengths: Tensor, longest: int) -> None:
        """`longest` is the most tokens that an output has, its end counted, for src (B, S) of these lengths (B,)."""
        self.config, self.places, self.width = config, config.nbest, 1
        self.starts: Sequence[int] = range(config.nbest)
        shape = (longest, self.places)
        sentences = [row[:length] for row, length in zip(src.cpu().numpy(), lengths.tolist(), strict=True)]
        numbers = np.stack([_numbers(config.seed, sentence).random(shape) for sentence in sentences])
        self.numbers = torch.from_numpy(numbers).to(src.device)  # (B, longest, N) uniform in [0, 1)

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        weights = self._shares(log_probs).double().cumsum(1)  # in the order of the vocabulary, which rounding leaves
        draws = self.numbers[frontier.owners, frontier.histories.size(2), frontier.places].unsqueeze(1)
        tokens = torch.searchsorted(weights, draws * weights[:, -1:], right=True)
        tokens.clamp_(max=log_probs.size(1) - 1)  # where there are no finite probabilities
        steps = log_probs.gather(1, tokens)
        totals = frontier.totals(steps).squeeze(2)
        return Selection(steps, tokens, totals, torch.arange(self.places, device=totals.device).expand_as(totals))

    def _shares(self, log_probs: Tensor) -> Tensor:
        """What each token may be drawn with, up to a factor: (R, W)."""
        scaled = log_probs / self.config.temperature
        if self.config.top_k is not None:
            least = scaled.topk(min(self.config.top_k, scaled.size(1))).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        shares = scaled.softmax(1)
        if self.config.top_p is not None:
            ordered = shares.sort(1, descending=True).values
            before = ordered.cumsum(1) - ordered  # what likelier tokens have together
            least = ordered.masked_fill(before >= self.config.top_p, torch.inf).amin(1, keepdim=True)
            shares = shares.masked_fill(shares < least, 0.0)
        return shares


def _numbers(seed: int, sentence: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> np.random.Generator:
    """The random numbers of a sentence, whatever its padding and the batch around it."""
    key = hashlib.blake2b(sentence.astype("<i8").tobytes(), digest_size=16, key=seed.to_bytes(16, "little")).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
