"""Beam search with fixed shapes for GPUs. It has the same results as `search`, but its steps do not wait for the GPU.

Each of the K slots of a sentence is a row of the decoder at every step, even after its hypothesis has ended. The
shapes of a step therefore depend only on the number of sentences. State that `search` keeps in lists stays on the
device: score, length and slot of the best finished hypothesis, and for each step the chosen tokens and the slots of
their prefixes. The host reads this state when sentences leave the batch.

Every few steps, flags of finished sentences are copied to the host, which reads them some steps later. The steps in
between do not change results, because no open hypothesis of a finished sentence can become its best.

Letters: B sentences, b sentences still in the batch, K slots, W vocabulary, t tokens so far.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nmtkit.console.log import SECONDS_BETWEEN_LINES, report
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import rules_of
from nmtkit.decoding.search import Hypothesis, length_limits, length_penalties, with_bos
from nmtkit.inference.arrays import Ints
from nmtkit.inference.sentence_rows import FILLED
from nmtkit.inference.torch_inference import FixedModel, TorchState, columns_of, top_k
from nmtkit.machine.host_copy import HostCopy
from nmtkit.text.vocabulary import EOS

_EVERY, _LATER = 4, 2  # steps from one copy of `done` to the next, and from a copy to its reading


@torch.inference_mode()
def fixed_search(
    model: FixedModel,
    src: Ints,
    lengths: Ints,
    config: SearchConfig,
    banned: Sequence[tuple[int, ...]] = (),
    starts: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """Search like `search.search`, for src (B, S) with `lengths` (B,) and options that `can_be_fixed` accepts."""
    first = with_bos(starts, len(src))
    beam = _FixedBeam(lengths, config, model, banned, first)
    source = (torch.from_numpy(each).to(model.device) for each in (src, lengths))
    state: TorchState = model.start(model.encode(*source))
    state.reorder_fixed(torch.arange(len(src), device=model.device).repeat_interleave(config.beam), config.beam)
    for tokens in torch.from_numpy(first[:, :-1].T.repeat(config.beam, 1)).to(model.device):
        model.best_step(tokens, state, 1, ())
    pending: HostCopy | None = None
    reported = time.monotonic()
    for t in range(beam.most + 1):
        beam.advance(model, state)
        if t % _EVERY == 0:
            pending = HostCopy(beam.done().float())
        if t % _EVERY == _LATER and pending is not None:
            staying = [number for number, done in enumerate(pending.read()) if not done]
            if not staying:
                break
            if len(staying) <= FILLED * len(beam.sentences):
                beam.leave(staying, state)
        if time.monotonic() - reported >= SECONDS_BETWEEN_LINES:
            reported = time.monotonic()
            report("long search", {"sentences": len(beam.sentences), "step": t + 1, "max steps": beam.most + 1})
    return beam.results()


class _Finished(NamedTuple):
    """The best finished hypothesis of each sentence, each (b,)."""

    score: Tensor  # -inf if there is none
    tokens: Tensor  # their number, without EOS
    slot: Tensor  # of its prefix
    end: Tensor  # log-probability of EOS


class _Step(NamedTuple):
    """The tokens that the slots received at a step, each (b, K)."""

    origin: Tensor  # slot of the prefix
    token: Tensor
    log_prob: Tensor


class _FixedBeam:
    """The hypotheses of the sentences still in the batch, in fixed rows."""

    def __init__(
        self, lengths: Ints, config: SearchConfig, model: FixedModel, banned: Sequence[tuple[int, ...]], first: Ints
    ) -> None:
        """`first` (B, 1 + n) are BOS and the tokens between it and the outputs."""
        B, K, device, begun = len(lengths), config.beam, model.device, first.shape[1] - 1
        limit = length_limits(config, lengths, model.longest_sequence, begun=begun)
        self.least, self.most = int(limit.min()), int(limit.max())
        penalties = length_penalties(config, self.most + 1 + begun)[begun:]
        self.penalties: list[float] = penalties.tolist()  # by |Y|
        self.limit = torch.from_numpy(limit).to(device)  # (b,) tokens before EOS
        self.longest_penalty = torch.from_numpy(penalties[limit + 1]).to(device)  # (b,)
        self.token_mask, _ = rules_of(config, banned)
        self.K, self.ranks = K, torch.arange(K, device=device)
        self.sentences = list(range(B))  # index into `src` of each still in the batch
        self.left = torch.full((B, 1), K, device=device)  # slots that hold no finished hypothesis
        numbers: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.log_probs = torch.full((B, K), -torch.inf, **numbers)  # of open hypotheses, -inf for other slots
        self.log_probs[:, 0] = 0.0
        self.tokens = torch.from_numpy(first[:, -1].repeat(K)).to(device)  # the next input of the decoder
        none = torch.zeros(B, dtype=torch.long, device=device)
        self.finished = _Finished(torch.full((B,), -torch.inf, **numbers), none, none, torch.zeros(B, **numbers))
        self.steps: list[_Step] = []
        self._set_rows()
        self._results: list[list[Hypothesis]] = [[] for _ in range(B)]

    def _set_rows(self) -> None:
        """Set the first row of each sentence (b, 1)."""
        self.first_rows = torch.arange(0, len(self.sentences) * self.K, self.K, device=self.ranks.device).unsqueeze(1)

    def advance(self, model: FixedModel, state: TorchState) -> None:
        K, t = self.K, len(self.steps)
        steps, tokens = self._candidates(model, state)  # (b · K, K)
        c = steps.size(1)
        totals = self.log_probs.unsqueeze(2) + steps.view(-1, K, c)
        total, index = top_k(totals.flatten(1), K)  # (b, K), as all that follow
        token, log_prob = (each.view(-1, K * c).gather(1, index) for each in (tokens, steps))
        origin = index.div(c, rounding_mode="floor")
        chosen = (self.ranks < self.left) & (total > -torch.inf)
        ended = chosen & (token == EOS)
        self._finish((total / self.penalties[t + 1]).masked_fill(~ended, -torch.inf), origin, log_prob)
        self.left = self.left - ended.sum(1, keepdim=True)
        self.log_probs = total.masked_fill(~chosen | ended, -torch.inf)
        self.tokens = token.flatten()
        self.steps.append(_Step(origin, token, log_prob))
        if K > 1:
            state.reorder_fixed((origin + self.first_rows).flatten(), K)

    def _candidates(self, model: FixedModel, state: TorchState) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens of the best candidates of each row, both (b · K, K)."""
        t = len(self.steps)
        excluded = self.token_mask(t)
        if t < self.least:
            return model.best_step(self.tokens, state, self.K, excluded)
        log_probs = model.step(self.tokens, state)  # (b · K, W)
        end = log_probs[:, EOS].clone()
        if excluded:
            log_probs.index_fill_(1, columns_of(excluded, log_probs.device), -torch.inf)
        forced = (self.limit == t).repeat_interleave(self.K, output_size=len(log_probs))
        log_probs.masked_fill_(forced.unsqueeze(1), -torch.inf)
        log_probs[:, EOS] = torch.where(forced, end, log_probs[:, EOS])
        return top_k(log_probs, self.K)

    def _finish(self, scores: Tensor, origin: Tensor, log_prob: Tensor) -> None:
        """Keep the best hypothesis that ends at this step, if it is the best so far. Scores are (b, K)."""
        score, rank = scores.max(1, keepdim=True)
        before = self.finished
        better = score.squeeze(1) > before.score
        self.finished = _Finished(
            torch.where(better, score.squeeze(1), before.score),
            before.tokens.masked_fill(better, len(self.steps)),
            torch.where(better, origin.gather(1, rank).squeeze(1), before.slot),
            torch.where(better, log_prob.gather(1, rank).squeeze(1), before.end),
        )

    def done(self) -> Tensor:
        """Return (b,), True for sentences without an open hypothesis that can still become the best."""
        return self.log_probs.amax(1) / self.longest_penalty <= self.finished.score

    def leave(self, staying: list[int], state: TorchState) -> None:
        """Keep the `staying` sentences in the batch, and read the results of the others."""
        keep = torch.tensor(staying, device=self.ranks.device)
        leaving = sorted(set(range(len(self.sentences))) - set(staying))
        self._read(leaving)
        state.reorder((self.first_rows[keep] + self.ranks).flatten())
        self.tokens = self.tokens.view(-1, self.K)[keep].flatten()
        self.limit, self.longest_penalty = self.limit[keep], self.longest_penalty[keep]
        self.left, self.log_probs = self.left[keep], self.log_probs[keep]
        self.finished = _Finished(*(column[keep] for column in self.finished))
        self.steps = [_Step(*(column[keep] for column in step)) for step in self.steps]
        self.sentences = [self.sentences[number] for number in staying]
        self._set_rows()

    def results(self) -> list[list[Hypothesis]]:
        """Return the best output of each sentence in a list, which is empty if no log-probability is finite."""
        self._read(list(range(len(self.sentences))))
        return self._results

    def _read(self, numbers: list[int]) -> None:
        """Read the best outputs of some sentences from the device, by following their slots back from the end."""
        index = torch.tensor(numbers, device=self.ranks.device)
        score, length, slot, end = (column[index].cpu().numpy() for column in self.finished)
        origins, tokens, steps = (
            torch.stack(columns)[:, index].cpu().numpy() for columns in zip(*self.steps, strict=True)
        )
        rows = np.arange(len(numbers))
        ids, log_probs = (np.zeros((len(numbers), len(each)), each.dtype) for each in (tokens, steps))
        for t in reversed(range(len(tokens))):
            ids[:, t], log_probs[:, t] = tokens[t, rows, slot], steps[t, rows, slot]
            slot = np.where(t < length, origins[t, rows, slot], slot)
        for row, number in enumerate(numbers):
            if score[row] > -np.inf:
                found = Hypothesis(
                    ids[row, : length[row]].tolist(),
                    float(score[row]),
                    [*log_probs[row, : length[row]].tolist(), float(end[row])],
                )
                self._results[self.sentences[number]] = [found]
