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
from nmtkit.vocab import BOS, EOS, PAD


@dataclass(frozen=True)
class Constraints:
    """What the output for one sentence must have, as ids: the tokens it begins with, and terms that come in it."""

    prefix: tuple[int, ...] = ()
    terms: tuple[tuple[int, ...], ...] = ()


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True)
class TokenMask:
    """What no hypothesis may go on with, whatever its tokens: PAD, BOS, those that are banned, and EOS before it has
    `minimum` tokens."""

    minimum: int = 0
    banned: tuple[int, ...] = ()

    def after(self, length: int) -> tuple[int, ...]:
        """The ids that must not come after so many tokens."""
        return (PAD, BOS, *self.banned, *((EOS,) if length < self.minimum else ()))


class Rule(Protocol):
    """Forbids tokens because of those that a hypothesis has."""

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        """Set to -inf in log_probs (R, W) what hypotheses of these tokens (R, t) must not go on with."""


def rules_of(config: SearchConfig, banned: Sequence[tuple[int, ...]] = ()) -> tuple[TokenMask, list[Rule]]:
    """What the options forbid, and the `banned` sequences of ids."""
    rules: list[Rule] = []
    if config.no_repeat_ngram is not None:
        rules.append(NoRepeatedNgram(config.no_repeat_ngram))
    if longer := [sequence for sequence in banned if len(sequence) > 1]:
        rules.append(Banned(longer))
    single = tuple(token for sequence in banned if len(sequence) == 1 for token in sequence)
    return TokenMask(config.min_len, single), rules


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


@dataclass(frozen=True)
class Banned:
    """None of these sequences of two tokens or more."""

    sequences: Sequence[tuple[int, ...]]

    def __call__(self, log_probs: Tensor, tokens: Tensor) -> None:
        for *begin, last in self.sequences:
            if len(begin) <= tokens.size(1):
                begun = (tokens[:, -len(begin) :] == tokens.new_tensor(begin)).all(1)
                log_probs[begun, last] = -torch.inf
