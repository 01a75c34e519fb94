"""Beam search over the decoder's cached `step` (§6.1). Greedy search is a beam of one.

A sentence has K = `beam` places. At each step its open hypotheses are extended by every token of the vocabulary,
and the best candidates take the places that are still open, all compared by log P(Y|X). A candidate that ends with
EOS keeps its place and is finished; it joins the sentence's n best by score, log P(Y|X) / lp(Y) with
lp(Y) = ((5 + |Y|) / 6)^α, |Y| counting EOS. So K hypotheses finish at most, a beam of one is the greedy argmax, and
a beam as wide as the space is exhaustive.

A sentence is done when no place is open, or when no open hypothesis can reach the n best any more: log P only falls,
so log P / lp(longest output allowed) is the best it can come to. Stopping there never changes the result.

Letters: b sentences still in the batch, K beam, N n-best, R open hypotheses in all (a row of the decoder each),
W vocabulary, t tokens so far.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.decoding.config import SearchConfig
from nmtkit.vocab import BOS, EOS, PAD

_GROUP = 16  # columns that share a peak in `best_of_rows`


class SearchModel(Protocol):
    """What the search needs of a model: `Transformer` has it. A row is a hypothesis that goes on."""

    def encode(self, src: Tensor) -> Any:
        """The encoder's output for src (B, S)."""

    def start(self, memory: Any) -> Any:
        """The state of B rows, one a sentence, before their first token.

        It offers `reorder(origins)`: row i goes on from row origins[i], with more rows or fewer than before.
        """

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Feed tokens (R,) and get logits, or log-probabilities, (R, W) of the next ones."""


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
    state = model.start(model.encode(src))
    while True:
        beam.extend(model.step(beam.last_tokens(), state))
        done = beam.done()
        if done.any():
            beam.collect(done, found)
            if done.all():
                return found
            beam.leave(done)
        state.reorder(beam.origins())


class _Beam:
    """The hypotheses of the sentences still in the batch, as tensors; nothing here works hypothesis by hypothesis."""

    def __init__(self, src: Tensor, config: SearchConfig, longest: int | None) -> None:
        B, K, N, device = src.size(0), config.beam, config.nbest, src.device
        source_lengths = (src != PAD).sum(1) - 1
        limit = (config.max_len_a * source_lengths.double() + config.max_len_b).long()
        self.limit = limit if longest is None else limit.clamp(max=longest)  # (b,) tokens before EOS
        counts = torch.arange(int(self.limit.max()) + 2, dtype=torch.float64)
        self.penalty = (((5 + counts) / 6) ** config.length_penalty).float().to(device)  # lp by |Y|
        self.sentences = torch.arange(B, device=device)  # (b,) row of `src`
        self.places = torch.full((B,), K, device=device)  # (b,) still open
        self.ranks = torch.arange(K, device=device)
        self.log_probs = torch.full((B, K), -torch.inf, device=device)  # of open hypotheses; -inf: no one here
        self.log_probs[:, 0] = 0.0  # all begin as the same empty hypothesis, which counts once
        self.rows = self.sentences * K  # (R,) place, sentence · K + rank, of the hypothesis in each decoder's row
        self.came_from = torch.empty(B, K, dtype=torch.long, device=device)  # decoder's row of each one's prefix
        self.tokens = torch.empty(B, K, 0, dtype=torch.long, device=device)
        self.token_log_probs = torch.empty(B, K, 0, device=device)
        self.best_scores = torch.full((B, N), -torch.inf, device=device)  # of finished ones, best first
        self.best_tokens = torch.empty(B, N, 0, dtype=torch.long, device=device)
        self.best_token_log_probs = torch.empty(B, N, 0, device=device)

    def last_tokens(self) -> Tensor:
        """What to feed to the decoder next, (R,)."""
        if self.tokens.size(2) == 0:
            return torch.full_like(self.rows, BOS)
        return self.tokens[:, :, -1].flatten()[self.rows]

    def extend(self, logits: Tensor) -> None:
        """Take the best candidates of the next token, given logits (R, W)."""
        b, K = self.log_probs.shape
        step_log_probs, step_tokens = best_of_rows(self._allowed(logits.log_softmax(-1, torch.float32)), K)  # (R, c)
        c = step_tokens.size(1)
        candidates = step_log_probs.new_full((b * K, c), -torch.inf)
        candidates[self.rows] = self.log_probs.flatten()[self.rows].unsqueeze(1) + step_log_probs
        totals, index = candidates.view(b, K * c).topk(K)  # (b, K), as are all that follow
        origin = index.div(c, rounding_mode="floor")
        row_of_place = torch.zeros(b * K, dtype=torch.long, device=logits.device)
        row_of_place[self.rows] = torch.arange(self.rows.numel(), device=logits.device)
        self.came_from = row_of_place.view(b, K).gather(1, origin)
        candidate = self.came_from * c + index.remainder(c)
        token = step_tokens.flatten()[candidate]

        chosen = (self.ranks < self.places.unsqueeze(1)) & (totals > -torch.inf)
        ended = chosen & (token == EOS)
        self.tokens = _append(self.tokens, origin, token)
        self.token_log_probs = _append(self.token_log_probs, origin, step_log_probs.flatten()[candidate])
        self.log_probs = totals.masked_fill(~chosen | ended, -torch.inf)
        if ended.any():
            self._finish(totals.masked_fill(~ended, -torch.inf))
            self.places = self.places - ended.sum(1)

    def _allowed(self, log_probs: Tensor) -> Tensor:
        """log_probs (R, W) without what must not be produced; written in place."""
        log_probs[:, PAD] = -torch.inf
        log_probs[:, BOS] = -torch.inf
        at_limit = self.limit == self.tokens.size(2)
        if at_limit.any():
            rows = at_limit[self.rows // self.log_probs.size(1)].nonzero().squeeze(1)
            end = log_probs[rows, EOS]
            log_probs[rows] = -torch.inf
            log_probs[rows, EOS] = end
        return log_probs

    def _finish(self, log_probs: Tensor) -> None:
        """Join hypotheses that have just ended to the n best; log_probs (b, K), -inf for those that have not."""
        N, grown = self.best_scores.size(1), self.tokens.size(2) - self.best_tokens.size(2)
        scores = torch.cat([self.best_scores, log_probs / self.penalty[self.tokens.size(2)]], dim=1)
        tokens = torch.cat([F.pad(self.best_tokens, (0, grown)), self.tokens], dim=1)
        token_log_probs = torch.cat([F.pad(self.best_token_log_probs, (0, grown)), self.token_log_probs], dim=1)
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

    def leave(self, done: Tensor) -> None:
        """Let the sentences that are done (b,) go."""
        staying = (~done).nonzero().squeeze(1)
        self.limit, self.sentences, self.places = self.limit[staying], self.sentences[staying], self.places[staying]
        self.log_probs, self.came_from = self.log_probs[staying], self.came_from[staying]
        self.tokens, self.token_log_probs = self.tokens[staying], self.token_log_probs[staying]
        self.best_scores, self.best_tokens = self.best_scores[staying], self.best_tokens[staying]
        self.best_token_log_probs = self.best_token_log_probs[staying]

    def origins(self) -> Tensor:
        """Give each open hypothesis a row of the decoder; returns the row that each goes on from, (R,)."""
        self.rows = (self.log_probs > -torch.inf).flatten().nonzero().squeeze(1)
        return self.came_from.flatten()[self.rows]


def best_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row of scores (R, W), and their columns: (R, count), highest first.

    What `topk` gives, found in two steps, several times as fast on a CPU: the highest are among the columns of the
    groups with the highest peaks.
    """
    width = scores.size(1)
    groups = width // _GROUP
    if groups < 4 * count or scores.is_cuda:
        highest, columns = scores.topk(min(count, width))
        return highest, columns
    peaks = torch.unflatten(scores[:, : groups * _GROUP], 1, (_GROUP, groups)).amax(
        1
    )  # column c is in group c % groups
    members = torch.arange(_GROUP, device=scores.device) * groups
    columns = (peaks.topk(count).indices.unsqueeze(2) + members).flatten(1)
    rest = torch.arange(groups * _GROUP, width, device=scores.device).expand(scores.size(0), -1)
    columns = torch.cat([columns, rest], dim=1)
    highest, index = scores.gather(1, columns).topk(count)
    return highest, columns.gather(1, index)


def _append(histories: Tensor, origin: Tensor, new: Tensor) -> Tensor:
    """The histories (b, K, t) of the chosen prefixes (b, K), each with its new entry (b, K): (b, K, t + 1)."""
    return torch.cat([_chosen(histories, origin), new.unsqueeze(2)], dim=2)


def _chosen(histories: Tensor, order: Tensor) -> Tensor:
    """Of the histories (b, ·, t) those with the numbers `order` (b, n): (b, n, t)."""
    return histories.gather(1, order.unsqueeze(2).expand(-1, -1, histories.size(2)))
