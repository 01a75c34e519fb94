"""Models with a known distribution after every prefix, and reference searches written from the definitions."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.protocol import InferenceModel
from nmtkit.text.vocabulary import BOS, EOS, PAD, UNK

A, B, C = 4, 5, 6  # three words after the special tokens
Prefix = tuple[int, ...]


class PrefixState:
    """The decoder state of a `PrefixModel`: the sentence and the prefix of each row."""

    def __init__(self, sentences: list[int]) -> None:
        self.rows: list[tuple[int, Prefix]] = [(sentence, ()) for sentence in sentences]

    def reorder(self, origins: Ints) -> None:
        self.rows = [self.rows[origin] for origin in origins.tolist()]
        runs = [sentence for sentence, _ in itertools.groupby(sentence for sentence, _ in self.rows)]
        assert len(runs) == len(set(runs)), "rows of a sentence are contiguous"


class PrefixModel(InferenceModel):
    """A model whose log-probabilities are a function of sentence and prefix, `log_probs`: -inf for PAD and BOS."""

    size = vocabulary_size = 7
    device, precision = "cpu", "fp32"
    steps = 0

    def log_probs(self, sentence: int, prefix: Prefix) -> list[float]:
        raise NotImplementedError

    def encode(self, src: Ints, lengths: Ints) -> list[int]:
        return list(range(len(src)))

    def start(self, memory: list[int]) -> PrefixState:
        return PrefixState(memory)

    def step(self, tokens: Ints, state: PrefixState) -> Floats:
        self.steps += 1
        state.rows = [
            (sentence, (*prefix, token)) for (sentence, prefix), token in zip(state.rows, tokens.tolist(), strict=True)
        ]
        assert all(prefix[0] == BOS for _, prefix in state.rows)
        return np.array([self.log_probs(sentence, prefix[1:]) for sentence, prefix in state.rows], np.float32)

    def state_bytes(self, tokens: int) -> int:
        return 8 * tokens


class ScriptedModel(PrefixModel):
    """Probabilities from a table per sentence: prefix -> {token: probability}. Other prefixes are followed by EOS."""

    def __init__(self, *scripts: Mapping[Prefix, Mapping[int, float]]) -> None:
        self.scripts = scripts

    def log_probs(self, sentence: int, prefix: Prefix) -> list[float]:
        table = self.scripts[sentence].get(prefix, {EOS: 1.0})
        assert sum(table.values()) == pytest.approx(1.0)
        return [math.log(table[token]) if token in table else -math.inf for token in range(self.size)]


class RandomModel(PrefixModel):
    """Pseudorandom probabilities that depend on the whole prefix; `eos` is added to the logit of EOS."""

    def __init__(self, seed: int, eos: float = 0.0) -> None:
        self.seed, self.eos = seed, eos
        self.known: dict[tuple[int, Prefix], list[float]] = {}

    def log_probs(self, sentence: int, prefix: Prefix) -> list[float]:
        key = (sentence, prefix)
        if key not in self.known:
            number = int("1" + "".join(map(str, prefix))) * 31 + sentence * 1_000_003 + self.seed
            logits = 2 * torch.randn(self.size, generator=torch.Generator().manual_seed(number % 2**31))
            logits[EOS] += self.eos
            logits[[PAD, BOS]] = -math.inf
            self.known[key] = logits.log_softmax(0).tolist()
        return self.known[key]


def source(*lengths: int) -> tuple[Ints, Ints]:
    """Sentences (B, S) with the given numbers of tokens before EOS, and their lengths (B,) with EOS."""
    rows = [[A] * length + [EOS] + [PAD] * (max(lengths) - length) for length in lengths]
    src = np.array(rows)
    return src, (src != PAD).sum(1)


def with_lengths(src: Tensor) -> tuple[Tensor, Tensor]:
    """Padded sentences (B, S), and their lengths (B,)."""
    return src, (src != PAD).sum(1)


Allowed = Callable[[Prefix, int], bool]


def all_outputs(model: PrefixModel, sentence: int, limit: int, alpha: float) -> list[tuple[float, Prefix]]:
    """Every output of at most `limit` tokens before EOS with its score, best first."""
    return sorted(_outputs(model, sentence, limit, alpha), reverse=True)


def _outputs(model: PrefixModel, sentence: int, limit: int, alpha: float) -> Iterator[tuple[float, Prefix]]:
    for length in range(limit + 1):
        for ids in itertools.product((UNK, A, B, C), repeat=length):
            yield score(model, sentence, ids, alpha), ids


def score(model: PrefixModel, sentence: int, ids: Prefix, alpha: float) -> float:
    log_prob = sum(model.log_probs(sentence, ids[:t])[token] for t, token in enumerate((*ids, EOS)))
    return float(log_prob / ((5 + len(ids) + 1) / 6) ** alpha)


def plain_beam_search(
    model: PrefixModel,
    sentence: int,
    limit: int,
    beam: int,
    alpha: float,
    allowed: Allowed = lambda prefix, token: True,
) -> list[tuple[float, Prefix]]:
    """Reference beam search, prefix by prefix, until all hypotheses are finished.

    `allowed` tells whether a token may follow a prefix.
    """
    open_prefixes: list[tuple[float, Prefix]] = [(0.0, ())]
    finished: list[Prefix] = []
    for length in range(limit + 1):
        candidates = [
            (log_prob + step, (*prefix, token))
            for log_prob, prefix in open_prefixes
            for token, step in enumerate(model.log_probs(sentence, prefix))
            if token not in (PAD, BOS) and (token == EOS or length < limit) and allowed(prefix, token)
        ]
        best = sorted(candidates, reverse=True)[: beam - len(finished)]
        finished += [prefix[:-1] for _, prefix in best if prefix[-1] == EOS]
        open_prefixes = [(log_prob, prefix) for log_prob, prefix in best if prefix[-1] != EOS]
    return sorted(((score(model, sentence, ids, alpha), ids) for ids in finished), reverse=True)


def ids_of(hypotheses: list[Hypothesis]) -> list[Prefix]:
    return [tuple(hypothesis.ids) for hypothesis in hypotheses]
