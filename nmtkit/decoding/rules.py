"""What must not come next, whatever its probability, and what an output must have.

A rule takes log-probabilities away, so that log P of a hypothesis still only falls and the search may still stop early.
Letters: R open hypotheses, W vocabulary, t tokens so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nmtkit.decoding.config import SearchConfig
from nmtkit.vocab import EOS


@dataclass(frozen=True)
class Demands:
    """What the output for one sentence must have, as ids: the tokens it begins with, and terms that come in it."""

    prefix: tuple[int, ...] = ()
    terms: tuple[tuple[int, ...], ...] = ()


NO_DEMANDS = Demands()


class Rule(Protocol):
    """Forbids tokens."""

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        """Set to -inf in log_probs (R, W) what hypotheses of these tokens (R, t) must not go on with."""


def rules_of(config: SearchConfig, banned: Sequence[tuple[int, ...]] = ()) -> list[Rule]:
    """The rules that the options ask for, and that of the `banned` sequences of ids."""
    rules: list[Rule] = []
    if config.min_len:
        rules.append(MinimumLength(config.min_len))
    if config.no_repeat_ngram is not None:
        rules.append(NoRepeatedNgram(config.no_repeat_ngram))
    if banned:
        rules.append(Banned(banned))
    return rules


@dataclass(frozen=True)
class MinimumLength:
    """No end before `length` tokens."""

    length: int

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        if tokens.size(1) < self.length:
            log_probs[:, EOS] = -torch.inf


@dataclass(frozen=True)
class NoRepeatedNgram:
    """No `order` tokens in a row that the hypothesis has already."""

    order: int

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        length = tokens.size(1)
        if length < self.order:
            return
        ngrams = tokens.unfold(1, self.order, 1)  # (R, t - order + 1, order)
        begun = tokens[:, length - self.order + 1 :].unsqueeze(1)
        rows, places = (ngrams[:, :, :-1] == begun).all(2).nonzero(as_tuple=True)
        log_probs[rows, ngrams[rows, places, -1]] = -torch.inf


class Banned:
    """None of these sequences of tokens."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self.single = [sequence[0] for sequence in sequences if len(sequence) == 1]
        self.longer = [sequence for sequence in sequences if len(sequence) > 1]

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        log_probs[:, self.single] = -torch.inf
        for *begin, last in self.longer:
            if len(begin) <= tokens.size(1):
                begun = (tokens[:, -len(begin) :] == tokens.new_tensor(begin)).all(1)
                log_probs[begun, last] = -torch.inf
