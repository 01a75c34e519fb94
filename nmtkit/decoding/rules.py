"""Forbidden tokens, and constraints on an output.

Rules only lower log-probabilities, so log P of a hypothesis never rises, and the search may stop early.
Letters: R open hypotheses, W vocabulary, t tokens so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nmtkit.decoding.config import SearchConfig
from nmtkit.inference.arrays import Floats, Ints
from nmtkit.text.vocabulary import EOS

Term = tuple[tuple[int, ...], ...]  #: the tokens of each spelling


@dataclass(frozen=True)
class Constraints:
    """The ids that the output for one sentence must contain: of each term, one of its spellings."""

    prefix: tuple[int, ...] = ()  #: the first tokens
    terms: tuple[Term, ...] = ()  #: anywhere

    @property
    def required_tokens(self) -> int:
        """The number of tokens, without EOS, that an output may need: the prefix and all distinct terms."""
        return len(self.prefix) + sum(map(term_length, set(self.terms)))

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens of the prefix and the terms."""
        return (*self.prefix, *(token for term in self.terms for spelling in term for token in spelling))


NO_CONSTRAINTS = Constraints()


def term_length(term: Term) -> int:
    """Return the number of tokens of the longest spelling."""
    return max(map(len, term))


def contains(tokens: tuple[int, ...], term: Term) -> bool:
    """Whether `tokens` contains the tokens of a spelling of the term in sequence."""
    return any(tokens[start : start + len(spelling)] == spelling for spelling in term for start in range(len(tokens)))


#: Returns the ids that are forbidden after any prefix of a length in tokens.
TokenMask = Callable[[int], tuple[int, ...]]

#: Sets the forbidden entries of log_probs (R, W) to -inf, for hypotheses with these tokens (R, t).
Rule = Callable[[Floats, Ints], None]


def rules_of(config: SearchConfig, banned: Sequence[tuple[int, ...]] = ()) -> tuple[TokenMask, list[Rule]]:
    """Return the mask and the rules that apply the options and the `banned` sequences of ids."""

    def mask(length: int) -> tuple[int, ...]:
        return (*single, EOS) if length < config.min_len else single

    rules: list[Rule] = []
    if config.no_repeat_ngram is not None:
        rules.append(partial(_forbid_repetition, config.no_repeat_ngram))
    if longer := [sequence for sequence in banned if len(sequence) > 1]:
        rules.append(partial(_forbid_sequences, longer))
    single = tuple(token for sequence in banned if len(sequence) == 1 for token in sequence)
    return mask, rules


def _forbid_repetition(order: int, log_probs: Floats, tokens: Ints) -> None:
    length = tokens.shape[1]
    if length < order:
        return
    ngrams = sliding_window_view(tokens, order, axis=1)  # (R, t - order + 1, order)
    begun = tokens[:, None, length - order + 1 :]
    rows, positions = (ngrams[:, :, :-1] == begun).all(2).nonzero()
    log_probs[rows, ngrams[rows, positions, -1]] = -np.inf


def _forbid_sequences(sequences: Sequence[tuple[int, ...]], log_probs: Floats, tokens: Ints) -> None:
    """Forbid each of the `sequences`, of at least two tokens each."""
    for *begin, last in sequences:
        if len(begin) <= tokens.shape[1]:
            begun = (tokens[:, -len(begin) :] == begin).all(1)
            log_probs[begun, last] = -np.inf
