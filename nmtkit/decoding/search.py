"""Beam search over the decoder's cached `step` (§6.1), and sampling by the same steps. Greedy search is a beam of one.

A sentence has K = `beam` slots. At each step, its open hypotheses are extended by every token of the vocabulary, and
the best candidates by log P(Y|X) take the vacant slots. A candidate that ends with EOS is finished and keeps its slot;
it joins the n best of the sentence by its score, log P(Y|X) / lp(Y) with lp(Y) = ((5 + |Y|) / 6)^α; |Y| counts EOS. So
at most K hypotheses finish, a beam of one is the greedy argmax, and a beam as wide as the space is exhaustive.

The hypotheses of an n-best list have different texts. If a candidate ends with the text of a finished hypothesis in
other pieces, the better score is kept and the next best candidate takes the slot: at most K different texts finish.

A sentence is done when no slot is vacant, or when no open hypothesis can reach the n best: log P never rises, so
log P / lp(longest output allowed) is an upper bound of its score. Stopping there never changes the result.

Other strategies, with slots in several banks, are in `strategies`; forbidden tokens are in `rules`. Required tokens,
those of a prefix and EOS at the length limit, take precedence over both.

Letters: B sentences, b sentences still in the batch, P slots (K unless a strategy has others), R rows (open hypotheses,
in decoder order), W vocabulary, c candidates of a row, t tokens so far.
"""

import time
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nmtkit.console.log import SECONDS_BETWEEN_LINES, report
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.constraints import GridBeamSearch
from nmtkit.decoding.rules import Constraints, rules_of
from nmtkit.decoding.strategies import BeamSearch, DiverseBeamSearch, Frontier, Sampling, Selection, Strategy
from nmtkit.errors import UserError
from nmtkit.inference.protocol import InferenceModel, InferenceState
from nmtkit.text.vocabulary import BOS, EOS, PAD

TextOf = Callable[[Sequence[int]], Hashable]  #: the text of the ids of a hypothesis


@dataclass(frozen=True)
class Hypothesis:
    """A finished output."""

    ids: list[int]  #: without EOS
    score: float
    token_log_probs: list[float]  #: of each token, EOS included
    attention: NDArray[np.float32] | None = field(default=None, compare=False)  #: (T, S), set by `with_attention`


@torch.inference_mode()
def search(
    model: InferenceModel,
    src: Tensor,
    lengths: Tensor,
    config: SearchConfig,
    constraints: Sequence[Constraints] = (),
    banned: Sequence[tuple[int, ...]] = (),
    text_of: TextOf = tuple,
) -> list[list[Hypothesis]]:
    """The `nbest` best outputs of each sentence of src (B, S), best first, with different texts unless sampled.

    Sentences have `lengths` (B,), EOS included; the padding after them is ignored. `constraints` is empty or has one
    entry for each sentence. `banned` sequences of ids are never produced; UNK may be. `text_of` is
    called with the ids of each finished output if `nbest` is more than 1.

    Without EOS, an output has at most max_len_a · (length - 1) + max_len_b tokens, or as many as its constraints
    require, and never more than `model.longest_sequence`. There are fewer than `nbest` outputs if the limit, the rules
    or the constraints allow no more, or if the model gives no finite probabilities.

    Raises UserError for required terms with sampling or diverse groups.
    """
    different_texts = config.nbest > 1 and not config.sampling
    finished = _Finished(src.size(0), config.nbest, text_of if different_texts else None)
    beam = _Beam(src, lengths, config, model.longest_sequence, constraints, banned, finished)
    state = model.start(model.encode(src, lengths))
    reported = time.monotonic()
    while True:
        state.reorder(beam.origins())
        beam.advance(model, state)
        done = beam.done()
        if time.monotonic() - reported >= SECONDS_BETWEEN_LINES:
            reported = time.monotonic()
            beam.report()
        if done.any():
            if done.all():
                return finished.best
            beam.leave(done)


class _Finished:
    """The n best finished hypotheses of each sentence, best first; with different texts if `text_of` is given."""

    def __init__(self, sentences: int, nbest: int, text_of: TextOf | None) -> None:
        self.best: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.text_of, self._nbest = text_of, nbest
        self._by_text: list[dict[Hashable, Hypothesis]] = [{} for _ in range(sentences)]

    def add(self, sentence: int, hypothesis: Hypothesis) -> bool:
        """Add a hypothesis. Returns False if its text is already finished; the better score is kept."""
        best, texts = self.best[sentence], self._by_text[sentence]
        known = None
        if self.text_of is not None:
            text = self.text_of(hypothesis.ids)
            known = texts.get(text)
            if known is not None and known.score >= hypothesis.score:
                return False
            texts[text] = hypothesis
            if known is not None:
                best[:] = (other for other in best if other is not known)
        insort(best, hypothesis, key=lambda other: -other.score)
        del best[self._nbest :]
        return known is None

    def score_to_beat(self, sentence: int) -> float:
        """The score that a hypothesis must exceed to enter the n best."""
        best = self.best[sentence]
        return best[-1].score if len(best) == self._nbest else -torch.inf


class _Extension(NamedTuple):
    """The chosen candidate of each slot; each tensor is (b, P). Entries of unused slots have no meaning."""

    origin: Tensor  # slot of the prefix
    row: Tensor  # row of the prefix
    token: Tensor
    log_prob: Tensor  # of the token
    total: Tensor  # log P of the hypothesis
    chosen: Tensor  # bool: whether the slot is used
    ended: Tensor  # bool: whether the token is EOS


class _Beam:
    """The hypotheses of the sentences still in the batch, as tensors."""

    def __init__(
        self,
        src: Tensor,
        lengths: Tensor,
        config: SearchConfig,
        longest: int | None,
        constraints: Sequence[Constraints],
        banned: Sequence[tuple[int, ...]],
        finished: _Finished,
    ) -> None:
        B, device = src.size(0), src.device
        self.prefix = _prefixes(constraints, B).to(device)  # (b, p) required first tokens, then PAD
        self.limit = length_limits(config, lengths, longest, constraints)  # (b,) tokens before EOS
        most = int(self.limit.max()) + 1
        self.penalty = length_penalties(config, most).to(device)  # lp by |Y|
        self.longest_penalty = self.penalty[self.limit + 1]  # (b,)
        self.token_mask, self.rules = rules_of(config, banned)
        self.strategy = _strategy(config, src, lengths, most, constraints)
        P = self.strategy.slots
        self.sentences = torch.arange(B, device=device)  # (b,) index into `src`
        self.left = torch.full((B, P // self.strategy.width), self.strategy.width, device=device)  # vacant, by bank
        self.vacant = torch.ones(B, P, dtype=torch.bool, device=device)  # slots that the next hypotheses may take
        self.ranks = torch.arange(self.strategy.width, device=device)
        numbers: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.log_probs = torch.full((B, P), -torch.inf, **numbers)  # log P of open hypotheses, -inf for empty slots
        self.log_probs[:, list(self.strategy.starts)] = 0.0  # the empty hypothesis, once in each bank
        self.came_from = self.sentences.unsqueeze(1).expand(-1, P)  # row of each slot's prefix
        self.tokens = torch.empty(B, P, 0, dtype=torch.long, device=device)
        self.token_log_probs = torch.empty(B, P, 0, **numbers)
        self.finished = finished
        self.score_to_beat = torch.full((B,), -torch.inf, **numbers)  # the last score of the n best, if there are n
        self._set_free_lengths()

    def origins(self) -> Tensor:
        """Assign each open hypothesis to a row of the decoder. Returns the previous row of each prefix, (R,)."""
        self.open = (self.log_probs > -torch.inf).flatten()
        self.slots = self.open.nonzero().squeeze(1)  # (R,) index in b · P + slot
        return self.came_from.flatten()[self.slots]

    def last_tokens(self) -> Tensor:
        """The next input of the decoder, (R,)."""
        if self.tokens.size(2) == 0:
            return torch.full_like(self.slots, BOS)
        return self.tokens[:, :, -1].flatten()[self.slots]

    def advance(self, model: InferenceModel, state: InferenceState) -> None:
        """Extend the hypotheses by one token."""
        frontier = Frontier(self.log_probs, self.vacant, self.slots, self.sentences, self.tokens)
        choose = self._feed(model, state, frontier)
        extension = self._extension(choose(None))
        seen: set[int] = set()
        repeating = self._finish(extension, seen)
        if repeating:
            closed = torch.zeros_like(self.slots, dtype=torch.bool)
            while repeating:  # a row ends only once, so this terminates
                closed[repeating] = True
                extension = self._extension(choose(closed))
                repeating = self._finish(extension, seen)
        self._take(extension)

    def _feed(
        self, model: InferenceModel, state: InferenceState, frontier: Frontier
    ) -> Callable[[Tensor | None], Selection]:
        """Feed the last tokens to the decoder. Returns a function that chooses the next ones.

        The argument of the function is True for the rows (R,) that must not end with EOS, or None.
        """
        strategy, choice_is_free = self.strategy, not self.rules and self._free()
        if choice_is_free and isinstance(strategy, BeamSearch):
            excluded = self.token_mask.after(self.tokens.size(2))
            # the text of a closed EOS already has a slot, so the other candidates of the row are enough
            steps, tokens = model.best_step(self.last_tokens(), state, strategy.slots, excluded)
            return lambda closed: strategy.choose_among(_without_ends(steps, tokens, closed), tokens, frontier)
        log_probs = self._allowed(model.step(self.last_tokens(), state), frontier)

        def choose(closed: Tensor | None) -> Selection:
            if closed is not None:
                log_probs[:, EOS].masked_fill_(closed, -torch.inf)
            return strategy.choose(log_probs, frontier)

        return choose

    def _extension(self, choice: Selection) -> _Extension:
        """The chosen candidate of each slot."""
        b, P = self.log_probs.shape
        c = choice.tokens.size(1)
        origin = choice.index.div(c, rounding_mode="floor")  # (b, P), as are all that follow
        row_of_slot = (self.open.cumsum(0) - 1).clamp_min_(0).view(b, P)
        row = row_of_slot.gather(1, origin)
        candidate = row * c + choice.index.remainder(c)
        token, log_prob = choice.tokens.flatten()[candidate], choice.steps.flatten()[candidate]
        chosen = self.vacant & (choice.totals > -torch.inf)
        return _Extension(origin, row, token, log_prob, choice.totals, chosen, chosen & (token == EOS))

    def _finish(self, extension: _Extension, seen: set[int]) -> list[int]:
        """Add the hypotheses that end to the finished ones, except rows already `seen` at this step.

        Returns the rows whose text was finished before.
        """
        slots = extension.ended.flatten().nonzero().squeeze(1)  # (e,) index in b · P + slot
        if not len(slots):
            return []
        row, origin, total, last = _select(
            slots, *(each.flatten() for each in (extension.row, extension.origin, extension.total, extension.log_prob))
        )
        index = slots.div(self.vacant.size(1), rounding_mode="floor")
        prefixes = index * self.vacant.size(1) + origin
        scores = total / self.penalty[self.tokens.size(2) + 1]
        (sentences,) = _select(index, self.sentences)
        histories = _select(prefixes, self.tokens.flatten(0, 1), self.token_log_probs.flatten(0, 1))
        columns = (column.tolist() for column in (row, sentences, scores, *histories, last))
        repeating = []
        for row_number, sentence, score, ids, log_probs, log_prob in zip(*columns, strict=True):
            if row_number not in seen:
                seen.add(row_number)
                if not self.finished.add(sentence, Hypothesis(ids, score, [*log_probs, log_prob])):
                    repeating.append(row_number)
        to_beat = [self.finished.score_to_beat(sentence) for sentence in sentences.tolist()]
        self.score_to_beat.index_copy_(0, index, self.score_to_beat.new_tensor(to_beat))
        return repeating

    def _take(self, extension: _Extension) -> None:
        """Continue with the hypotheses of an extension that have not ended."""
        origin, self.came_from, token, log_prob, total, chosen, ended = extension
        self.tokens = _append(self.tokens, origin, token)
        self.token_log_probs = _append(self.token_log_probs, origin, log_prob)
        self.log_probs = total.masked_fill(~chosen | ended, -torch.inf)
        if ended.any():
            self.left = self.left - ended.view(len(ended), -1, self.strategy.width).sum(2)
            self.vacant = (self.ranks < self.left.unsqueeze(2)).flatten(1)

    def _allowed(self, log_probs: Tensor, frontier: Frontier) -> Tensor:
        """Set forbidden tokens of log_probs (R, W) to -inf, possibly in place."""
        if self._free():
            return self._permitted(log_probs, frontier)
        token = self._required()[frontier.index_of_row].unsqueeze(1)
        only = torch.full_like(log_probs, -torch.inf).scatter_(1, token, log_probs.gather(1, token))
        return torch.where(token == PAD, self._permitted(log_probs, frontier), only)

    def _free(self) -> bool:
        """Whether no sentence has a required next token."""
        return self.tokens.size(2) in self.free_lengths

    def _permitted(self, log_probs: Tensor, frontier: Frontier) -> Tensor:
        if excluded := self.token_mask.after(self.tokens.size(2)):
            log_probs.index_fill_(1, torch.tensor(excluded, device=log_probs.device), -torch.inf)
        for rule in self.rules:
            rule(log_probs, frontier.tokens)
        return log_probs

    def _required(self) -> Tensor:
        """(b,) the required next token, PAD if there is none."""
        length = self.tokens.size(2)
        end = (self.limit == length) * EOS
        return end if length >= self.prefix.size(1) else torch.where(end > 0, end, self.prefix[:, length])

    def done(self) -> Tensor:
        """(b,) True for sentences without an open hypothesis that can still enter the n best."""
        return self.log_probs.amax(1) / self.longest_penalty <= self.score_to_beat

    def report(self) -> None:
        """Log the progress of a long search."""
        steps = int(self.limit.max()) + 1
        report("long search", {"sentences": len(self.sentences), "step": self.tokens.size(2), "of at most": steps})

    def leave(self, done: Tensor) -> None:
        """Remove the sentences that are done (b,) from the batch."""
        staying = (~done).nonzero().squeeze(1)
        self.limit, self.longest_penalty = _select(staying, self.limit, self.longest_penalty)
        self.sentences, self.left, self.vacant = _select(staying, self.sentences, self.left, self.vacant)
        self.prefix, self.log_probs, self.came_from = _select(staying, self.prefix, self.log_probs, self.came_from)
        self.tokens, self.token_log_probs = _select(staying, self.tokens, self.token_log_probs)
        (self.score_to_beat,) = _select(staying, self.score_to_beat)
        self._set_free_lengths()

    def _set_free_lengths(self) -> None:
        """Set the lengths after which no sentence has a required next token."""
        self.free_lengths = range(int((self.prefix != PAD).sum(1).max()), int(self.limit.min()))


def _select(index: Tensor, *columns: Tensor) -> list[Tensor]:
    """Index each column along dimension 0. column[index] would wake torch's threads, which spin in the next step."""
    return [column.index_select(0, index) for column in columns]


def length_limits(
    config: SearchConfig, lengths: Tensor, longest: int | None, constraints: Sequence[Constraints] = ()
) -> Tensor:
    """(B,) the most tokens before EOS for sources with `lengths` (B,), EOS included; `longest` is the model's limit."""
    limit = (config.max_len_a * (lengths - 1).double() + config.max_len_b).long()
    if constraints:
        required = [constraint.required_tokens for constraint in constraints]
        limit = torch.maximum(limit, torch.tensor(required, device=limit.device))
    return limit if longest is None else limit.clamp(max=longest)


def length_penalties(config: SearchConfig, most: int) -> Tensor:
    """lp(Y) for |Y| from 0 to `most` tokens, EOS included. It never decreases."""
    counts = torch.arange(most + 1, dtype=torch.float64)
    base = counts if config.length_penalty_form == "power" else (5 + counts) / 6
    return (base**config.length_penalty).clamp(max=torch.finfo(torch.float32).max).float()


def _strategy(
    config: SearchConfig, src: Tensor, lengths: Tensor, longest: int, constraints: Sequence[Constraints]
) -> Strategy:
    """The strategy of the options, for outputs of at most `longest` tokens, EOS included."""
    if any(constraint.terms for constraint in constraints):
        if config.sampling or config.diverse_groups > 1:
            raise UserError("required terms cannot be combined with --sampling or --diverse-groups")
        return GridBeamSearch(config.beam, constraints, src.device)
    if config.sampling:
        return Sampling(config, src, lengths, longest)
    if config.diverse_groups > 1:
        return DiverseBeamSearch(config.beam, config.diverse_groups, config.diversity)
    return BeamSearch(config.beam)


def _prefixes(constraints: Sequence[Constraints], sentences: int) -> Tensor:
    """(B, p) the required prefixes, padded with PAD."""
    if not any(constraint.prefix for constraint in constraints):
        return torch.empty(sentences, 0, dtype=torch.long)
    prefixes = [torch.tensor(constraint.prefix, dtype=torch.long) for constraint in constraints]
    return pad_sequence(prefixes, batch_first=True, padding_value=PAD)


def _without_ends(steps: Tensor, tokens: Tensor, closed: Tensor | None) -> Tensor:
    """The log-probabilities of candidates (R, c), -inf for EOS in rows that are closed (R,)."""
    return steps if closed is None else steps.masked_fill(closed.unsqueeze(1) & (tokens == EOS), -torch.inf)


def _append(histories: Tensor, origin: Tensor, new: Tensor) -> Tensor:
    """The histories (b, P, t) of the prefixes in slots `origin` (b, P), each with a new entry (b, P): (b, P, t + 1)."""
    prefixes = histories.gather(1, origin.unsqueeze(2).expand(-1, -1, histories.size(2)))
    return torch.cat([prefixes, new.unsqueeze(2)], dim=2)
