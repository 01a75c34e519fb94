"""Strategies of the search: how a step chooses the next tokens, by beam search, in groups, or by sampling.

The P slots of a sentence are divided into banks of `width` slots, and each bank is filled on its own.
Letters: b sentences, P slots, R rows (open hypotheses, in decoder order), W vocabulary, c candidates of a row, t tokens
so far.
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

    log_probs: Tensor  # (b, P) log P of the hypothesis in each slot, -inf for an empty slot
    vacant: Tensor  # (b, P) True for the slots that the next hypotheses may take
    slots: Tensor  # (R,) slot of each row, counted over all sentences: index in b · P + slot
    sentences: Tensor  # (b,) index into `src`
    histories: Tensor  # (b, P, t) tokens

    @property
    def tokens(self) -> Tensor:
        """(R, t) tokens of each row."""
        return self.histories.flatten(0, 1)[self.slots]

    @property
    def index_of_row(self) -> Tensor:
        """(R,) index of each row's sentence among the b."""
        return self.slots.div(self.log_probs.size(1), rounding_mode="floor")

    @property
    def sentence_of_row(self) -> Tensor:
        """(R,) index of each row's sentence into `src`."""
        return self.sentences[self.index_of_row]

    @property
    def slot_of_row(self) -> Tensor:
        """(R,) slot of each row in its sentence, from 0 to P - 1."""
        return self.slots.remainder(self.log_probs.size(1))

    def by_slot(self, x: Tensor, missing: float) -> Tensor:
        """Scatter x (R, c) to (b, P, c), with `missing` in empty slots."""
        b, P = self.log_probs.shape
        if x.size(0) == b * P:
            return x.view(b, P, -1)
        scattered = x.new_full((b * P, x.size(1)), missing)
        return scattered.index_copy_(0, self.slots, x).view(b, P, -1)

    def totals(self, steps: Tensor) -> Tensor:
        """(b, P, c) log P of hypotheses with candidates whose log-probabilities are steps (R, c)."""
        return self.by_slot(self.log_probs.flatten()[self.slots].unsqueeze(1) + steps, -torch.inf)


@dataclass(frozen=True)
class Selection:
    """The candidates of a step and the chosen ones. A slot without a candidate has the total -inf."""

    steps: Tensor  # (R, c) log-probability of each candidate
    tokens: Tensor  # (R, c) token of each candidate
    totals: Tensor  # (b, P) log P of the chosen candidate of each slot
    index: Tensor  # (b, P) index of the chosen candidate: slot of its prefix · c + candidate


class Strategy(Protocol):
    """Chooses candidates."""

    slots: int  # of a sentence
    width: int  # slots of a bank
    starts: Sequence[int]  # slots of the empty hypothesis before the first step

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        """Choose a candidate for each vacant slot, given log_probs (R, W), which may be modified."""


class BeamSearch:
    """Chooses the K = `beam` best candidates of all hypotheses of a sentence."""

    def __init__(self, beam: int) -> None:
        self.slots = self.width = beam
        self.starts: Sequence[int] = (0,)

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        return self.choose_among(*top_k(log_probs, self.slots), frontier)

    def choose_among(self, steps: Tensor, tokens: Tensor, frontier: Frontier) -> Selection:
        """As `choose`, given only the K best tokens of each row and their log-probabilities (R, K)."""
        return Selection(steps, tokens, *top_k(frontier.totals(steps).flatten(1), self.slots))


class DiverseBeamSearch(BeamSearch):
    """Diverse beam search with Hamming diversity (Vijayakumar et al. 2018): chooses the K / G best in each of G groups.

    A candidate loses `strength` for each hypothesis of an earlier group that takes the same token at this step. Totals
    do not include the loss.
    """

    def __init__(self, beam: int, groups: int, strength: float) -> None:
        super().__init__(beam)
        self.width, self.strength = beam // groups, strength
        self.starts = range(0, beam, self.width)

    def choose_among(self, steps: Tensor, tokens: Tensor, frontier: Frontier) -> Selection:
        """As `BeamSearch.choose_among`: K tokens of a row are enough, because earlier groups take fewer."""
        c = steps.size(1)
        totals = frontier.totals(steps).flatten(1)
        tokens_of_all = frontier.by_slot(tokens, -1).flatten(1)
        taken = tokens_of_all[:, :0]
        chosen = []
        for start in self.starts:
            group = slice(start * c, (start + self.width) * c)
            repetitions = (tokens_of_all[:, group, None] == taken[:, None]).sum(2)
            _, index = top_k(totals[:, group] - self.strength * repetitions, self.width)
            index += start * c
            chosen.append(index)
            real = frontier.vacant[:, start : start + self.width] & (totals.gather(1, index) > -torch.inf)
            taken = torch.cat([taken, tokens_of_all.gather(1, index).masked_fill(~real, -2)], dim=1)
        index = torch.cat(chosen, dim=1)
        return Selection(steps, tokens, totals.gather(1, index), index)


class Sampling:
    """Draws N = `nbest` independent samples. The random numbers depend only on the seed, the source sentence and N."""

    def __init__(self, config: SearchConfig, src: Tensor, lengths: Tensor, longest: int) -> None:
        """For src (B, S) with lengths (B,) and outputs of at most `longest` tokens, EOS included."""
        self.config, self.slots, self.width = config, config.nbest, 1
        self.starts: Sequence[int] = range(config.nbest)
        shape = (longest, self.slots)
        sentences = [row[:length] for row, length in zip(src.cpu().numpy(), lengths.tolist(), strict=True)]
        numbers = np.stack([_numbers(config.seed, sentence).random(shape) for sentence in sentences])
        self.numbers = torch.from_numpy(numbers).to(src.device)  # (B, longest, N) uniform in [0, 1)

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        weights = self._shares(log_probs).double().cumsum(1)  # in vocabulary order: rounding cannot change it
        draws = self.numbers[frontier.sentence_of_row, frontier.histories.size(2), frontier.slot_of_row].unsqueeze(1)
        tokens = torch.searchsorted(weights, draws * weights[:, -1:], right=True)
        tokens.clamp_(max=log_probs.size(1) - 1)  # in case no probability is finite
        steps = log_probs.gather(1, tokens)
        totals = frontier.totals(steps).squeeze(2)
        return Selection(steps, tokens, totals, torch.arange(self.slots, device=totals.device).expand_as(totals))

    def _shares(self, log_probs: Tensor) -> Tensor:
        """Unnormalized probabilities (R, W) to draw each token, after temperature, top-k and top-p."""
        scaled = log_probs / self.config.temperature
        if self.config.top_k is not None:
            least = scaled.topk(min(self.config.top_k, scaled.size(1))).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf)
        shares = scaled.softmax(1)
        if self.config.top_p is not None:
            ordered = shares.sort(1, descending=True).values
            before = ordered.cumsum(1) - ordered  # total probability of more probable tokens
            least = ordered.masked_fill(before >= self.config.top_p, torch.inf).amin(1, keepdim=True)
            shares = shares.masked_fill(shares < least, 0.0)
        return shares


def _numbers(seed: int, sentence: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> np.random.Generator:
    """The random numbers of a sentence, independent of its padding and its batch."""
    key = hashlib.blake2b(sentence.astype("<i8").tobytes(), digest_size=16, key=seed.to_bytes(16, "little")).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
