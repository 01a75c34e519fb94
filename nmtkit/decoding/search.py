"""Beam search over the decoder's cached `step` (§6.1). Greedy search is a beam of one.

A sentence has K = `beam` places. At each step its open hypotheses are extended by every token of the vocabulary,
and the best candidates take the places that are still open, all compared by log P(Y|X). A candidate that ends with
EOS keeps its place and is finished; it joins the sentence's n best by score, log P(Y|X) / lp(Y) with
lp(Y) = ((5 + |Y|) / 6)^α, |Y| counting EOS. So K hypotheses finish at most, a beam of one is the greedy argmax, and
a beam as wide as the space is exhaustive.

A sentence is done when no place is open, or when no open hypothesis can reach the n best any more: log P only falls,
so log P / lp(longest output allowed) is the best it can come to. Stopping there never changes the result.

Letters: b sentences still in the batch, K beam, N n-best, W vocabulary, t tokens so far.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.decoding.config import SearchConfig
from nmtkit.vocab import BOS, EOS, PAD


class SearchModel(Protocol):
    """What the search needs of a model: `Transformer` has it. States offer `reorder(origins)`."""

    def encode(self, src: Tensor) -> Any:
        """The encoder's output for src (B, S)."""

    def start(self, memory: Any, beam: int) -> Any:
        """The state of B·beam rows before their first token."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Feed tokens (B·beam,) and get logits, or log-probabilities, (B·beam, W) of the next ones."""


@dataclass(frozen=True)
class Hypothesis:
    """One finished output: its tokens without EOS, its score, and the log-probability of each token, EOS last."""

    ids: list[int]
    score: float
    token_log_probs: list[float]


@torch.inference_mode()
def search(model: SearchModel, src: Tensor, config: SearchConfig, longest: int | None = None) -> list[list[Hypothesis]]:
    """The `nbest` best outputs for each sentence of src (B, S), best first.

    Sentences end with EOS, then PAD. An output has at most max_len_a · S + max_len_b tokens before EOS, S counting
    the source without its EOS, and never more than `longest`. PAD and BOS are never produced; UNK may be. There are
    fewer than `nbest` outputs only where the limit leaves no room for as many, or the model gives no finite
    probability. Log-probabilities are computed in fp32 whatever the model computes in.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(src.size(0))]
    beam = _Beam(src, config, longest)
    state = model.start(model.encode(src), config.beam)
    while True:
        beam.extend(model.step(beam.last_tokens(), state))
        done = beam.done()
        if done.any():
            beam.collect(done, found)
            if done.all():
                return found
        state.reorder(beam.leave(done))


class _Beam:
    """The hypotheses of the sentences still in the batch, as tensors; nothing here works hypothesis by hypothesis."""

    def __init__(self, src: Tensor, config: SearchConfig, longest: int | None) -> None:
        B, K, N, device = src.size(0), config.beam, config.nbest, src.device
        source_lengths = (src != PAD).sum(1) - 1
        limit = (config.max_len_a * source_lengths.double() + config.max_len_b).long()
        self.limit = limit if longest is None else limit.clamp(max=longest)  # (b,) tokens before EOS
        counts = torch.arange(int(self.limit.max()) + 2, dtype=torch.float64)
        self.penalty = (((5 + counts) / 6) ** config.length_penalty).float().to(device)  # lp by |Y|
        self.beam = K
        self.sentences = torch.arange(B, device=device)  # (b,) row of `src`
        self.places = torch.full((B,), K, device=device)  # (b,) still open
        self.ranks = torch.arange(K, device=device)
        self.origin = torch.zeros(B, K, dtype=torch.long, device=device)  # place of each one's prefix a step before
        self.log_probs = torch.full((B, K), -torch.inf, device=device)  # of open hypotheses; -inf: no one here
        self.log_probs[:, 0] = 0.0  # all begin as the same empty hypothesis, which counts once
        self.tokens = torch.empty(B, K, 0, dtype=torch.long, device=device)
        self.token_log_probs = torch.empty(B, K, 0, device=device)
        self.best_scores = torch.full((B, N), -torch.inf, device=device)  # of finished ones, best first
        self.best_tokens = torch.empty(B, N, 0, dtype=torch.long, device=device)
        self.best_token_log_probs = torch.empty(B, N, 0, device=device)

    def last_tokens(self) -> Tensor:
        """What to feed to the decoder next, (b·K,)."""
        if self.tokens.size(2) == 0:
            return torch.full((self.log_probs.numel(),), BOS, device=self.tokens.device)
        return self.tokens[:, :, -1].flatten()

    def extend(self, logits: Tensor) -> None:
        """Take the best candidates of the next token, given logits (b·K, W)."""
        b, K, W = self.limit.size(0), self.beam, logits.size(1)
        step_log_probs = self._allowed(torch.log_softmax(logits.float(), dim=-1).view(b, K, W))
        candidates = (self.log_probs.unsqueeze(2) + step_log_probs).flatten(1)  # (b, K·W)
        totals, index = candidates.topk(K)
        origin, token = index.div(W, rounding_mode="floor"), index.remainder(W)
        chosen = (self.ranks < self.places.unsqueeze(1)) & (totals > -torch.inf)
        ended = chosen & (token == EOS)
        going_on = chosen & ~ended

        tokens = _append(self.tokens, origin, token)
        token_log_probs = _append(self.token_log_probs, origin, step_log_probs.flatten(1).gather(1, index))
        if ended.any():
            self._finish(totals.masked_fill(~ended, -torch.inf), tokens, token_log_probs)
            self.places = self.places - ended.sum(1)

        order = _by_place(origin, going_on)
        self.origin = origin.gather(1, order).where(going_on.gather(1, order), self.ranks)  # a free place stays
        self.log_probs = totals.masked_fill(~going_on, -torch.inf).gather(1, order)
        self.tokens, self.token_log_probs = _chosen(tokens, order), _chosen(token_log_probs, order)

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """log_probs (b, K, W) without what must not be produced; written in place."""
        log_probs[:, :, PAD] = -torch.inf
        log_probs[:, :, BOS] = -torch.inf
        at_limit = self.limit == self.tokens.size(2)
        if at_limit.any():
            only_eos = torch.full_like(log_probs, -torch.inf)
            only_eos[:, :, EOS] = log_probs[:, :, EOS]
            log_probs = torch.where(at_limit.view(-1, 1, 1), only_eos, log_probs)
        return log_probs

    def _finish(self, log_probs: Tensor, tokens: Tensor, token_log_probs: Tensor) -> None:
        """Join finished hypotheses to the n best; log_probs (b, K), -inf for those that have not ended."""
        N, grown = self.best_scores.size(1), tokens.size(2) - self.best_tokens.size(2)
        scores = torch.cat([self.best_scores, log_probs / self.penalty[tokens.size(2)]], dim=1)
        tokens = torch.cat([F.pad(self.best_tokens, (0, grown)), tokens], dim=1)
        token_log_probs = torch.cat([F.pad(self.best_token_log_probs, (0, grown)), token_log_probs], dim=1)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :N]
        self.best_scores = scores.gather(1, order)
        self.best_tokens, self.best_token_log_probs = _chosen(tokens, order), _chosen(token_log_probs, order)

    def done(self) -> Tensor:
        """(b,) True where no open hypothesis can still come among the n best."""
        attainable = self.log_probs.amax(1) / self.penalty[self.limit + 1]
        return attainable <= self.best_scores[:, -1]

    def collect(self, done: Tensor, found: list[list[Hypothesis]]) -> None:
        """Write the n best of the sentences that are done to their places in `found`."""
        columns = (self.sentences, self.best_scores, self.best_tokens, self.best_token_log_probs)
        for sentence, *nbest in zip(*(column[done].tolist() for column in columns), strict=True):
            for score, ids, log_probs in zip(*nbest, strict=True):
                if score > -torch.inf:
                    length = ids.index(EOS)
                    found[sentence].append(Hypothesis(ids[:length], score, log_probs[: length + 1]))

    def leave(self, done: Tensor) -> Tensor:
        """Let the sentences that are done (b,) go. The last ones take their places, so that few move.

        Returns the decoder's row that each hypothesis goes on from, (b·K,).
        """
        staying = (~done).nonzero().squeeze(1)
        b = staying.numel()
        keep = torch.arange(b, device=done.device)
        keep[done[:b]] = staying[staying >= b]
        if b < done.numel():
            self.limit, self.sentences, self.places = self.limit[keep], self.sentences[keep], self.places[keep]
            self.origin, self.log_probs = self.origin[keep], self.log_probs[keep]
            self.tokens, self.token_log_probs = self.tokens[keep], self.token_log_probs[keep]
            self.best_scores, self.best_tokens = self.best_scores[keep], self.best_tokens[keep]
            self.best_token_log_probs = self.best_token_log_probs[keep]
        return (keep.unsqueeze(1) * self.beam + self.origin).flatten()


def _append(histories: Tensor, origin: Tensor, new: Tensor) -> Tensor:
    """The histories (b, K, t) of the chosen prefixes (b, K), each with its new entry (b, K): (b, K, t + 1)."""
    return torch.cat([_chosen(histories, origin), new.unsqueeze(2)], dim=2)


def _chosen(histories: Tensor, order: Tensor) -> Tensor:
    """Of the histories (b, ·, t) those with the numbers `order` (b, n): (b, n, t)."""
    return histories.gather(1, order.unsqueeze(2).expand(-1, -1, histories.size(2)))


def _by_place(origin: Tensor, going_on: Tensor) -> Tensor:
    """Which hypothesis takes each place, (b, K), given the place that each comes from and whether it goes on, (b, K).

    The first to come from a place keeps it, so that its part of the decoder's state need not move.
    """
    place = torch.arange(origin.size(1), device=origin.device)
    comes_from = (origin.unsqueeze(2) == place) & going_on.unsqueeze(2)  # (b, hypothesis, place)
    stays = comes_from & (comes_from.cumsum(1) == 1)
    moves, vacant = ~stays.any(2, keepdim=True), ~stays.any(1, keepdim=True)
    takes = moves & vacant & (moves.cumsum(1) == vacant.cumsum(2))
    return (stays | takes).int().argmax(1)
