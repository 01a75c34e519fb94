"""Beam search over the decoder's cached `step` (§6.1), and sampling by the same steps. Greedy search is a beam of one.

A sentence has K = `beam` places. At each step its open hypotheses are extended by every token of the vocabulary,
and the best candidates take the places that are still open, all compared by log P(Y|X). A candidate that ends with
EOS keeps its place and is finished; it joins the sentence's n best by score, log P(Y|X) / lp(Y) with
lp(Y) = ((5 + |Y|) / 6)^α, |Y| counting EOS. So K hypotheses finish at most, a beam of one is the greedy argmax, and
a beam as wide as the space is exhaustive.

The hypotheses of an n-best list have different texts. Where a candidate ends with a text that has finished before in
other pieces, the better score stays, and the next best candidate takes its place: K different texts finish at most.

A sentence is done when no place is open, or when no open hypothesis can reach the n best any more: log P only falls,
so log P / lp(longest output allowed) is the best it can come to. Stopping there never changes the result.

Other ways to choose, with places in several banks, are in `strategies`; forbidden tokens are in `rules`. Required
tokens, a prefix and the end at the limit, take precedence over both.

Letters: b sentences still in the batch, P places (K unless a strategy has others), N n-best, R open hypotheses, each a
row of the decoder, W vocabulary, t tokens so far.
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

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.constraints import GridBeamSearch
from nmtkit.decoding.rules import Constraints, rules_of
from nmtkit.decoding.strategies import BeamSearch, DiverseBeamSearch, Frontier, Sampling, Selection, Strategy
from nmtkit.errors import UserError
from nmtkit.inference.protocol import InferenceModel, InferenceState
from nmtkit.log import SECONDS_BETWEEN_LINES, report
from nmtkit.vocab import BOS, EOS, PAD

TextOf = Callable[[Sequence[int]], Hashable]  # what the ids of a hypothesis spell


@dataclass(frozen=True)
class Hypothesis:
    """One finished output: its tokens without EOS, its score, and the log-probability of each token, EOS last.

    `attention` (tokens, source tokens) is what `alignment.with_attention` adds.
    """

    ids: list[int]
    score: float
    token_log_probs: list[float]
    attention: NDArray[np.float32] | None = field(default=None, compare=False)


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
    """The `nbest` best outputs for each sentence of src (B, S), best first, and of different texts unless sampled.

    Sentences have `lengths` (B,), EOS included; the padding after them is ignored. An output has at most
    max_len_a · S + max_len_b tokens before EOS, S counting the source without its EOS, or as many as are demanded, and
    never more than `model.longest_sequence`. PAD and BOS are never produced; UNK may be. There are fewer than `nbest`
    outputs only where the limit or the rules allow no more, or the model gives no finite probability. `constraints`
    has one entry for each sentence, or none at all. `banned` sequences of ids never come. `text_of` is called with
    each finished output that may repeat the text of another.
    """
    different_texts = config.nbest > 1 and not config.sampling
    finished = _Finished(src.size(0), config.nbest, text_of if different_texts else None)
    beam = _Beam(src, lengths, config, model.longest_sequence, constraints, banned, finished)
    state = model.start(model.encode(src, lengths))
    told = time.monotonic()
    while True:
        state.reorder(beam.origins())
        beam.advance(model, state)
        done = beam.done()
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            beam.report()
        if done.any():
            if done.all():
                return finished.best
            beam.leave(done)


class _Finished:
    """The finished hypotheses of each sentence: its n best, best first, of different texts where `text_of` is given."""

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
                best[:] = (one for one in best if one is not known)
        insort(best, hypothesis, key=lambda one: -one.score)
        del best[self._nbest :]
        return known is None

    def score_to_beat(self, sentence: int) -> float:
        """The score that a hypothesis must exceed to enter the n best."""
        best = self.best[sentence]
        return best[-1].score if len(best) == self._nbest else -torch.inf


class _Extension(NamedTuple):
    """The chosen candidates of a step, each tensor (b, P); entries of unused places have no meaning."""

    origin: Tensor  # place of the prefix
    row: Tensor  # decoder's row of the prefix
    token: Tensor
    log_prob: Tensor  # of the token
    total: Tensor  # log P
    chosen: Tensor  # bool
    ended: Tensor  # bool


class _Beam:
    """The hypotheses of the sentences still in the batch, as tensors; nothing here works hypothesis by hypothesis."""

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
        self.prefix = _prefixes(constraints, B).to(device)  # (b, p) tokens that must come first, then PAD
        limit = (config.max_len_a * (lengths - 1).double() + config.max_len_b).long()
        limit = torch.maximum(limit, _required_lengths(constraints, B).to(device))
        self.limit = limit if longest is None else limit.clamp(max=longest)  # (b,) tokens before EOS
        most = int(self.limit.max()) + 1
        self.penalty = length_penalties(config, most).to(device)  # lp by |Y|
        self.longest_penalty = self.penalty[self.limit + 1]  # (b,)
        self.token_mask, self.rules = rules_of(config, banned)
        self.strategy = _strategy(config, src, lengths, most, constraints)
        P = self.strategy.places
        self.sentences = torch.arange(B, device=device)  # (b,) row of `src`
        self.left = torch.full((B, P // self.strategy.width), self.strategy.width, device=device)  # places by bank
        self.vacant = torch.ones(B, P, dtype=torch.bool, device=device)  # the places that may still be taken
        self.ranks = torch.arange(self.strategy.width, device=device)
        numbers: dict[str, Any] = {"device": device, "dtype": torch.float32}
        self.log_probs = torch.full((B, P), -torch.inf, **numbers)  # of open hypotheses, -inf for free places
        self.log_probs[:, list(self.strategy.starts)] = 0.0  # the same empty hypothesis counts once in a bank
        self.came_from = self.sentences.unsqueeze(1).expand(-1, P)  # decoder's row of each one's prefix
        self.tokens = torch.empty(B, P, 0, dtype=torch.long, device=device)
        self.token_log_probs = torch.empty(B, P, 0, **numbers)
        self.finished = finished
        self.score_to_beat = torch.full((B,), -torch.inf, **numbers)  # the last score of the n best, if there are n
        self._note_free_lengths()

    def origins(self) -> Tensor:
        """Give each open hypothesis a row of the decoder; returns the row that each goes on from, (R,)."""
        self.open = (self.log_probs > -torch.inf).flatten()
        self.rows = self.open.nonzero().squeeze(1)  # (R,) sentence · P + place
        return self.came_from.flatten()[self.rows]

    def last_tokens(self) -> Tensor:
        """What to feed to the decoder next, (R,)."""
        if self.tokens.size(2) == 0:
            return torch.full_like(self.rows, BOS)
        return self.tokens[:, :, -1].flatten()[self.rows]

    def advance(self, model: InferenceModel, state: InferenceState) -> None:
        """Take the chosen candidates of the next token."""
        frontier = Frontier(self.log_probs, self.vacant, self.rows, self.sentences, self.tokens)
        choose = self._feed(model, state, frontier)
        extension = self._extension(choose(None))
        seen: set[int] = set()
        repeating = self._finish(extension, seen)
        if repeating:
            closed = torch.zeros_like(self.rows, dtype=torch.bool)
            while repeating:  # a row ends only once, so this terminates
                closed[repeating] = True
                extension = self._extension(choose(closed))
                repeating = self._finish(extension, seen)
        self._take(extension)

    def _feed(
        self, model: InferenceModel, state: InferenceState, frontier: Frontier
    ) -> Callable[[Tensor | None], Selection]:
        """Feed the last tokens to the decoder; returns a function that chooses the next, but no EOS for closed rows."""
        strategy, choice_is_free = self.strategy, not self.rules and self._free()
        if choice_is_free and isinstance(strategy, BeamSearch):
            excluded = self.token_mask.after(self.tokens.size(2))
            # where an EOS is closed, its text has a place already: the others of the row are enough
            steps, tokens = model.best_step(self.last_tokens(), state, strategy.places, excluded)
            return lambda closed: strategy.choose_among(_without_ends(steps, tokens, closed), tokens, frontier)
        log_probs = self._allowed(model.step(self.last_tokens(), state), frontier)

        def choose(closed: Tensor | None) -> Selection:
            if closed is not None:
                log_probs[:, EOS].masked_fill_(closed, -torch.inf)
            return strategy.choose(log_probs, frontier)

        return choose

    def _extension(self, choice: Selection) -> _Extension:
        """The chosen candidate of each place."""
        b, P = self.log_probs.shape
        c = choice.tokens.size(1)
        origin = choice.index.div(c, rounding_mode="floor")  # (b, P), as are all that follow
        row_of_place = (self.open.cumsum(0) - 1).clamp_min_(0).view(b, P)
        row = row_of_place.gather(1, origin)
        candidate = row * c + choice.index.remainder(c)
        token, log_prob = choice.tokens.flatten()[candidate], choice.steps.flatten()[candidate]
        chosen = self.vacant & (choice.totals > -torch.inf)
        return _Extension(origin, row, token, log_prob, choice.totals, chosen, chosen & (token == EOS))

    def _finish(self, extension: _Extension, seen: set[int]) -> list[int]:
        """Add the hypotheses that end to the finished ones, except rows `seen` at this step; returns the rows whose
        texts had finished before."""
        places = extension.ended.flatten().nonzero().squeeze(1)  # (e,)
        if not len(places):
            return []
        row, origin, total, last = _rows(
            places, *(each.flatten() for each in (extension.row, extension.origin, extension.total, extension.log_prob))
        )
        numbers = places.div(self.vacant.size(1), rounding_mode="floor")
        prefixes = numbers * self.vacant.size(1) + origin
        scores = total / self.penalty[self.tokens.size(2) + 1]
        (sentences,) = _rows(numbers, self.sentences)
        histories = _rows(prefixes, self.tokens.flatten(0, 1), self.token_log_probs.flatten(0, 1))
        columns = (column.tolist() for column in (row, sentences, scores, *histories, last))
        repeating = []
        for number, sentence, score, ids, log_probs, log_prob in zip(*columns, strict=True):
            if number not in seen:
                seen.add(number)
                if not self.finished.add(sentence, Hypothesis(ids, score, [*log_probs, log_prob])):
                    repeating.append(number)
        to_beat = [self.finished.score_to_beat(sentence) for sentence in sentences.tolist()]
        self.score_to_beat.index_copy_(0, numbers, self.score_to_beat.new_tensor(to_beat))
        return repeating

    def _take(self, extension: _Extension) -> None:
        """Continue with the open hypotheses of an extension."""
        origin, self.came_from, token, log_prob, total, chosen, ended = extension
        self.tokens = _append(self.tokens, origin, token)
        self.token_log_probs = _append(self.token_log_probs, origin, log_prob)
        self.log_probs = total.masked_fill(~chosen | ended, -torch.inf)
        if ended.any():
            self.left = self.left - ended.view(len(ended), -1, self.strategy.width).sum(2)
            self.vacant = (self.ranks < self.left.unsqueeze(2)).flatten(1)

    def _allowed(self, log_probs: Tensor, frontier: Frontier) -> Tensor:
        """log_probs (R, W) with -inf for forbidden tokens; may be modified in place."""
        if self._free():
            return self._permitted(log_probs, frontier)
        must = self._forced()
        token = must[frontier.numbers].unsqueeze(1)
        only = torch.full_like(log_probs, -torch.inf).scatter_(1, token, log_probs.gather(1, token))
        return torch.where(token == PAD, self._permitted(log_probs, frontier), only)

    def _free(self) -> bool:
        """Whether no sentence has a required next token."""
        return self.tokens.size(2) in self.free_lengths

    def _permitted(self, log_probs: Tensor, frontier: Frontier) -> Tensor:
        excluded = torch.tensor(self.token_mask.after(self.tokens.size(2)), device=log_probs.device)
        log_probs.index_fill_(1, excluded, -torch.inf)
        for rule in self.rules:
            rule(log_probs, frontier.tokens)
        return log_probs

    def _forced(self) -> Tensor:
        """(b,) the required next token, PAD where there is none."""
        length = self.tokens.size(2)
        end = (self.limit == length) * EOS
        return end if length >= self.prefix.size(1) else torch.where(end > 0, end, self.prefix[:, length])

    def done(self) -> Tensor:
        """(b,) True where no open hypothesis can enter the n best any more."""
        return self.log_probs.amax(1) / self.longest_penalty <= self.score_to_beat

    def report(self) -> None:
        """Log the progress of a long search."""
        steps = int(self.limit.max()) + 1
        report("searching", {"sentences": len(self.sentences), "step": self.tokens.size(2), "of at most": steps})

    def leave(self, done: Tensor) -> None:
        """Drop the sentences that are done (b,)."""
        staying = (~done).nonzero().squeeze(1)
        self.limit, self.longest_penalty = _rows(staying, self.limit, self.longest_penalty)
        self.sentences, self.left, self.vacant = _rows(staying, self.sentences, self.left, self.vacant)
        self.prefix, self.log_probs, self.came_from = _rows(staying, self.prefix, self.log_probs, self.came_from)
        self.tokens, self.token_log_probs = _rows(staying, self.tokens, self.token_log_probs)
        (self.score_to_beat,) = _rows(staying, self.score_to_beat)
        self._note_free_lengths()

    def _note_free_lengths(self) -> None:
        """Set the lengths after which no sentence has a required next token."""
        self.free_lengths = range(int((self.prefix != PAD).sum(1).max()), int(self.limit.min()))


def _rows(numbers: Tensor, *columns: Tensor) -> list[Tensor]:
    """Rows of each column. Indexing as column[numbers] would wake torch's threads, which spin during the next step."""
    return [column.index_select(0, numbers) for column in columns]


def length_penalties(config: SearchConfig, most: int) -> Tensor:
    """lp by |Y| from 0 to `most` tokens, EOS counted, in the form of the options. It never decreases."""
    counts = torch.arange(most + 1, dtype=torch.float64)
    base = counts if config.length_penalty_form == "power" else (5 + counts) / 6
    return (base**config.length_penalty).clamp(max=torch.finfo(torch.float32).max).float()


def _strategy(
    config: SearchConfig, src: Tensor, lengths: Tensor, longest: int, constraints: Sequence[Constraints]
) -> Strategy:
    """The strategy of the options; an output has at most `longest` tokens, EOS counted."""
    if any(constraint.terms for constraint in constraints):
        if config.sampling or config.diverse_groups > 1:
            raise UserError("terms that must come are looked for without --sampling and --diverse-groups")
        return GridBeamSearch(config.beam, constraints, src.device)
    if config.sampling:
        return Sampling(config, src, lengths, longest)
    if config.diverse_groups > 1:
        return DiverseBeamSearch(config.beam, config.diverse_groups, config.diversity)
    return BeamSearch(config.beam)


def _required_lengths(constraints: Sequence[Constraints], sentences: int) -> Tensor:
    """(B,) the least number of tokens that an output must be allowed."""
    lengths = [len(constraint.prefix) + sum(map(len, constraint.terms)) for constraint in constraints]
    return torch.tensor(lengths) if constraints else torch.zeros(sentences, dtype=torch.long)


def _prefixes(constraints: Sequence[Constraints], sentences: int) -> Tensor:
    """(B, p) the required prefixes, padded with PAD."""
    if not any(constraint.prefix for constraint in constraints):
        return torch.empty(sentences, 0, dtype=torch.long)
    prefixes = [torch.tensor(constraint.prefix, dtype=torch.long) for constraint in constraints]
    return pad_sequence(prefixes, batch_first=True, padding_value=PAD)


def _without_ends(steps: Tensor, tokens: Tensor, closed: Tensor | None) -> Tensor:
    """Log-probabilities of candidates (R, c) with -inf for EOS in the rows that are closed (R,)."""
    return steps if closed is None else steps.masked_fill(closed.unsqueeze(1) & (tokens == EOS), -torch.inf)


def _append(histories: Tensor, origin: Tensor, new: Tensor) -> Tensor:
    """The histories (b, K, t) of the chosen prefixes (b, K), each with its new entry (b, K): (b, K, t + 1)."""
    prefixes = histories.gather(1, origin.unsqueeze(2).expand(-1, -1, histories.size(2)))
    return torch.cat([prefixes, new.unsqueeze(2)], dim=2)
