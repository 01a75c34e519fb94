"""How a step of the search chooses the next tokens: the best, or samples.

The P places of a sentence are divided into banks of `width` places, and choices are made bank by bank.
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
    """The open hypotheses before a step."""

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
        """(R,) index of each hypothesis's sentence among the b."""
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
    """The candidates of a step and the chosen ones. A place without a candidate has the total -inf."""

    steps: Tensor  # (R, c) log-probability of each candidate
    tokens: Tensor  # (R, c)
    totals: Tensor  # (b, P) log P of the chosen ones
    index: Tensor  # (b, P) which they are, place · c + candidate


class Strategy(Protocol):
    """How to choose. `starts` are the places of the empty hypothesis at the beginning."""

    places: int
    width: int
    starts: Sequence[int]

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        """Choose for each vacant place, given the log-probabilities (R, W), which may be modified."""


class BeamSearch:
    """The K best candidates of all."""

    def __init__(self, beam: int) -> None:
        self.places = self.width = beam
        self.starts: Sequence[int] = (0,)

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        return self.choose_among(*top_k(log_probs, self.places), frontier)

    def choose_among(self, steps: Tensor, tokens: Tensor, frontier: Frontier) -> Selection:
        """As `choose`, given the K best tokens of each hypothesis and their log-probabilities (R, K); K suffice."""
        return Selection(steps, tokens, *top_k(frontier.totals(steps).flatten(1), self.places))


class DiverseBeamSearch(BeamSearch):
    """The K / G best in each of G groups; a candidate loses `strength` for each earlier group's hypothesis that takes
    its token at this step (Vijayakumar et al. 2018, with Hamming diversity). Totals do not include the loss."""

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
    """N independent samples. Their random numbers depend on the seed and the sentence only."""

    def __init__(self, config: SearchConfig, src: Tensor, lengths: Tensor, longest: int) -> None:
        """`longest` is the most tokens of an output, EOS counted, for src (B, S) of these lengths (B,)."""
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
        """The probability of each token to be drawn, up to a factor: (R, W)."""
        scaled = log_probs / self.config.temperature
        if self.config.top_k is not None:
            least = scaled.topk(min(self.config.top_k, scaled.size(1))).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        shares = scaled.softmax(1)
        if self.config.top_p is not None:
            ordered = shares.sort(1, descending=True).values
            before = ordered.cumsum(1) - ordered  # the sum of all likelier tokens
            least = ordered.masked_fill(before >= self.config.top_p, torch.inf).amin(1, keepdim=True)
            shares = shares.masked_fill(shares < least, 0.0)
        return shares


def _numbers(seed: int, sentence: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> np.random.Generator:
    """The random numbers of a sentence, independent of its padding and of its batch."""
    key = hashlib.blake2b(sentence.astype("<i8").tobytes(), digest_size=16, key=seed.to_bytes(16, "little")).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
