"""Beam search over the decoder's cached `step` (§6.1), and sampling by the same steps. Greedy search is a beam of one.

A sentence has K = `beam` slots. At each step, its open hypotheses are extended by every token of the vocabulary, and
the best candidates by log P(Y|X) take the vacant slots. A candidate that ends with EOS is finished and keeps its slot;
it joins the n best of the sentence by its score log P(Y|X) / lp(Y), with lp(Y) = ((5 + |Y|) / 6)^α; |Y| counts EOS.
At most K hypotheses finish, a beam of one is the greedy argmax, and a beam as wide as the space is exhaustive.

The hypotheses of an n-best list have different texts. If a candidate ends with the text of a finished hypothesis in
different pieces, the better score is kept and the next best candidate takes the slot: at most K different texts finish.

A sentence is done when no slot is vacant, or when no open hypothesis can reach the n best: log P never rises, so
log P / lp(longest output allowed) is an upper bound of its score. Stopping there never changes the result.

Other strategies, with slots in several banks, are in `strategies`; forbidden tokens are in `rules`. Required tokens (a
prefix, and EOS at the length limit) take precedence over both.

Letters: B sentences, b sentences still in the batch, P slots (K unless a strategy has others), R rows (open hypotheses,
in decoder order), W vocabulary, c candidates of a row, t tokens so far.
"""

import math
import time
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.console.log import SECONDS_BETWEEN_LINES, report
from nmtkit.data.padding import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.constraints import GridBeamSearch
from nmtkit.decoding.rules import Constraints, rules_of
from nmtkit.decoding.strategies import BeamSearch, DiverseBeamSearch, Frontier, Sampling, Selection, Strategy
from nmtkit.errors import UserError
from nmtkit.inference.arrays import Bools, Floats, Ints
from nmtkit.inference.protocol import InferenceModel, InferenceState, RecordedAttention
from nmtkit.text.vocabulary import BOS, EOS, PAD

TextOf = Callable[[Sequence[int]], Hashable]  #: the text of the ids of a hypothesis


@dataclass(frozen=True)
class Hypothesis:
    """A finished output of a search, with its score."""

    ids: list[int]  #: without EOS
    score: float
    token_log_probs: list[float]  #: of each token, EOS included
    attention: NDArray[np.float32] | None = field(default=None, compare=False)  #: (T, S) to the source


def search(
    model: InferenceModel,
    src: Ints,
    lengths: Ints,
    config: SearchConfig,
    constraints: Sequence[Constraints] = (),
    banned: Sequence[tuple[int, ...]] = (),
    text_of: TextOf = tuple,
    attention_layer: int | None = None,
    starts: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """Search the `nbest` best outputs of each sentence of src (B, S), best first, with different texts unless sampled.

    Sentences have `lengths` (B,), including EOS; padding after them is ignored. `constraints` is empty or has one
    entry for each sentence. `banned` sequences of ids are never produced; UNK may be. `text_of` is
    called with the ids of each finished output if `nbest` is more than 1. With an `attention_layer`, the hypotheses
    have its attention if the model can record it. `starts` are fed to the decoder after BOS, as many ids for each
    sentence: they count for the length penalty, but are neither scored nor part of the outputs.

    Without EOS, an output has at most max_len_a · (length - 1) + max_len_b tokens, or as many as its constraints
    require, and never more than `model.longest_sequence`. There are fewer than `nbest` outputs if the limit, the rules
    or the constraints allow no more, or if the model gives no finite probabilities.

    Raises UserError for required terms with sampling or diverse groups.
    """
    different_texts = config.nbest > 1 and not config.sampling
    finished = _Finished(len(src), config.nbest, text_of if different_texts else None)
    first = with_bos(starts, len(src))
    state = model.start(model.encode(src, lengths))
    for tokens in first[:, :-1].T.copy():
        model.best_step(tokens, state, 1, ())
    attention = None if attention_layer is None else model.record_attention(state, attention_layer)
    beam = _Beam(src, lengths, config, model.longest_sequence, constraints, banned, finished, first, attention)
    reported = time.monotonic()
    while True:
        state.reorder(beam.came_from.take(beam.slots))
        beam.advance(model, state)
        done = beam.done()
        if time.monotonic() - reported >= SECONDS_BETWEEN_LINES:
            reported, steps = time.monotonic(), int(beam.limit.max()) + 1
            report("long search", {"sentences": len(done), "step": beam.histories.length, "max steps": steps})
        if leaving := np.count_nonzero(done):
            if leaving == len(done):
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
        """Return the score that a hypothesis must exceed to enter the n best."""
        best = self.best[sentence]
        return best[-1].score if len(best) == self._nbest else -math.inf


class _Extension(NamedTuple):
    """The chosen candidate of each slot; each array is (b, P). Entries of unused slots have no meaning."""

    prefix: Ints  # slot of the prefix, counted over all sentences
    row: Ints  # row of the prefix
    token: Ints
    log_prob: Floats  # of the token
    total: Floats  # log P of the hypothesis
    chosen: Bools  # whether the slot is used
    ended: Bools  # whether the token is EOS


class _Histories:
    """The tokens and their log-probabilities (t, n) of the hypotheses in n slots, oldest first."""

    _GROWTH = 32  # steps

    def __init__(self, slots: int, attention: RecordedAttention | None) -> None:
        self.length = 0  # t
        self.attention = attention
        # the third: the row of `attention` of each token
        types = (np.int64, np.float32) if attention is None else (np.int64, np.float32, np.int64)
        self._columns: list[NDArray[Any]] = [np.empty((0, slots), each) for each in types]

    @property
    def tokens(self) -> Ints:
        return self._columns[0][: self.length]

    @property
    def log_probs(self) -> Floats:
        return self._columns[1][: self.length]

    def extend(self, prefix: Ints, token: Ints, log_prob: Floats, row: Ints) -> None:
        """Continue the hypothesis of slot prefix[i] with token[i], from decoder row row[i], in slot i. All are (n,)."""
        t = self.length
        rows = () if self.attention is None else (row + self.attention.begin,)
        for number, new in enumerate((token, log_prob, *rows)):
            column = self._columns[number]
            if t == len(column):
                column = np.concatenate([column, np.empty((self._GROWTH, len(token)), column.dtype)])
                self._columns[number] = column
            column[:t] = column[:t].take(prefix, 1)
            column[t] = new
        self.length = t + 1

    def attention_of(self, slot: int, row: int, source_length: int) -> Floats | None:
        """Return the attention (t + 1, S) of the hypothesis in a slot and of its next token, decoded in `row`."""
        if self.attention is None:
            return None
        found = np.zeros((self.length + 1, source_length), np.float32)
        rows = [*self._columns[2][: self.length, slot].tolist(), row + self.attention.begin]
        read = self.attention.weights[rows, :source_length]
        found[:, : read.shape[1]] = read  # without an </s> that the model does not read
        return found

    def select(self, slots: Ints) -> None:
        self._columns = [column[:, slots] for column in self._columns]


class _Beam:
    """The hypotheses of the sentences still in the batch, as arrays."""

    def __init__(
        self,
        src: Ints,
        lengths: Ints,
        config: SearchConfig,
        longest: int | None,
        constraints: Sequence[Constraints],
        banned: Sequence[tuple[int, ...]],
        finished: _Finished,
        first: Ints,
        attention: RecordedAttention | None,
    ) -> None:
        B, begun = len(src), first.shape[1] - 1
        prefixes = [constraint.prefix for constraint in constraints] or [()] * B
        self.prefix = pad(prefixes)[0]  # (b, p) required first tokens, then PAD
        self.limit = length_limits(config, lengths, longest, constraints, begun)  # (b,) tokens before EOS
        most = int(self.limit.max()) + 1
        self.penalty = length_penalties(config, most + begun)[begun:]  # lp by |Y| without the start
        self.longest_penalty = self.penalty[self.limit + 1]  # (b,)
        self.token_mask, self.rules = rules_of(config, banned)
        self.strategy = _strategy(config, src, lengths, most, constraints)
        P = self.strategy.slots
        self.sentences = np.arange(B)  # (b,) index into `src`
        self.left = np.full((B, P // self.strategy.width), self.strategy.width)  # vacant slots, by bank
        self.vacant: Bools = np.ones((B, P), np.bool_)  # slots that the next hypotheses may take
        self.log_probs = np.full((B, P), -np.inf, np.float32)  # log P of open hypotheses, -inf for empty slots
        self.log_probs[:, list(self.strategy.starts)] = 0.0  # the empty hypothesis, once in each bank
        self.came_from = self.sentences.repeat(P)  # (b · P,) row of each slot's prefix
        self.last = first[:, -1].repeat(P)  # the last token of each slot
        self.histories = _Histories(B * P, attention)
        self.finished, self.lengths = finished, lengths.tolist()
        self.score_to_beat = np.full(B, -np.inf, np.float32)  # the last score of the n best, if there are n
        self._find_open()
        self._set_free_lengths()

    def _find_open(self) -> None:
        """Assign each open hypothesis to a row of the decoder."""
        self.open = self.log_probs.ravel() > _IMPOSSIBLE
        (self.slots,) = self.open.nonzero()  # (R,) index in b · P + slot

    def advance(self, model: InferenceModel, state: InferenceState) -> None:
        frontier = Frontier(self.log_probs, self.vacant, self.slots, self.sentences, self.histories.tokens)
        choose = self._feed(model, state, frontier)
        extension = self._extension(choose(None))
        if np.count_nonzero(extension.ended):
            seen: set[int] = set()
            repeating = self._finish(extension, seen)
            closed = np.zeros(len(self.slots), np.bool_)
            while repeating:  # a row ends only once, so this terminates
                closed[repeating] = True
                extension = self._extension(choose(closed))
                repeating = self._finish(extension, seen)
        self._take(extension)

    def _feed(
        self, model: InferenceModel, state: InferenceState, frontier: Frontier
    ) -> Callable[[Bools | None], Selection]:
        """Feed the last tokens to the decoder. Returns a function that chooses the next tokens.

        The argument of the function is True for the rows (R,) that must not end with EOS, or None.
        """
        strategy, last = self.strategy, self.last.take(self.slots)
        if isinstance(strategy, BeamSearch) and not self.rules and frontier.length in self.free_lengths:
            steps, tokens = model.best_step(last, state, strategy.slots, self.token_mask(frontier.length))

            def choose_best(closed: Bools | None) -> Selection:
                # the text of a closed EOS already has a slot, so the other candidates of the row are enough
                open_steps = steps
                if closed is not None:
                    open_steps = np.where(closed[:, None] & (tokens == EOS), _IMPOSSIBLE, steps)
                return strategy.choose_among(open_steps, tokens, frontier)

            return choose_best
        log_probs = self._allowed(model.step(last, state), frontier)

        def choose(closed: Bools | None) -> Selection:
            if closed is not None:
                log_probs[closed, EOS] = -np.inf
            return strategy.choose(log_probs, frontier)

        return choose

    def _extension(self, choice: Selection) -> _Extension:
        b, P = self.log_probs.shape
        c = choice.tokens.shape[1]
        candidate = choice.chosen if b == 1 else choice.chosen + np.arange(0, b * P * c, P * c)[:, None]  # (b, P)
        row = prefix = candidate // c
        if len(self.slots) < b * P:
            row = (self.open.cumsum() - 1).clip(0)[prefix]
            candidate = candidate + (row - prefix) * c
        token, log_prob = choice.tokens.take(candidate), choice.steps.take(candidate)
        chosen = self.vacant & (choice.totals > _IMPOSSIBLE)
        return _Extension(prefix, row, token, log_prob, choice.totals, chosen, chosen & (token == _END))

    def _finish(self, extension: _Extension, seen: set[int]) -> list[int]:
        """Move hypotheses that end to the finished ones, except rows already `seen` at this step.

        Returns the rows whose text was finished before.
        """
        index, _ = extension.ended.nonzero()
        columns = [each[extension.ended] for each in extension]
        prefixes, rows, _, log_probs, totals, *_ = columns
        sentences, histories = self.sentences[index], self.histories
        scores = totals / self.penalty[histories.length + 1]
        found = (histories.tokens[:, prefixes].T, histories.log_probs[:, prefixes].T, log_probs)
        repeating = []
        for slot, row, sentence, score, ids, before, last in zip(
            *(column.tolist() for column in (prefixes, rows, sentences, scores, *found)), strict=True
        ):
            if row not in seen:
                seen.add(row)
                attention = histories.attention_of(slot, row, self.lengths[sentence])
                if not self.finished.add(sentence, Hypothesis(ids, score, [*before, last], attention)):
                    repeating.append(row)
        self.score_to_beat[index] = [self.finished.score_to_beat(sentence) for sentence in sentences.tolist()]
        return repeating

    def _take(self, extension: _Extension) -> None:
        """Continue with the hypotheses of an extension that have not ended."""
        prefix, row, token, log_prob, total, chosen, ended = extension
        self.came_from, self.last = row.ravel(), token.ravel()
        self.histories.extend(prefix.ravel(), self.last, log_prob.ravel(), self.came_from)
        self.log_probs = np.where(chosen, total, _IMPOSSIBLE)
        if np.count_nonzero(ended):
            self.log_probs[ended] = -np.inf
            self.left = self.left - ended.reshape(*self.left.shape, -1).sum(2)
            ranks = np.arange(self.strategy.width)
            self.vacant = (ranks < self.left[:, :, None]).reshape(self.vacant.shape)
        self._find_open()

    def _allowed(self, log_probs: Floats, frontier: Frontier) -> Floats:
        """Set forbidden tokens of log_probs (R, W) to -inf, in place."""
        length = frontier.length
        required = (self.limit == length) * EOS  # PAD, which is 0, if there is none
        if length < self.prefix.shape[1]:
            required = np.where(required > 0, required, self.prefix[:, length])
        tokens = required[frontier.index_of_row]
        (forced,) = (tokens != PAD).nonzero()
        kept = log_probs[forced, tokens[forced]]
        if excluded := self.token_mask(length):
            log_probs[:, excluded] = -np.inf
        for rule in self.rules:
            rule(log_probs, frontier.tokens)
        log_probs[forced] = -np.inf
        log_probs[forced, tokens[forced]] = kept
        return log_probs

    def done(self) -> Bools:
        """Return (b,), True for sentences without an open hypothesis that can still enter the n best."""
        done: Bools = np.maximum.reduce(self.log_probs, 1) / self.longest_penalty <= self.score_to_beat
        return done

    def leave(self, done: Bools) -> None:
        """Remove the sentences that are done (b,) from the batch."""
        slots = np.arange(self.vacant.size).reshape(self.vacant.shape)[~done].ravel()
        self.came_from, self.last = self.came_from[slots], self.last[slots]
        self.histories.select(slots)
        for name in ("limit", "longest_penalty", "sentences", "left", "vacant", "prefix", "log_probs", "score_to_beat"):
            setattr(self, name, getattr(self, name)[~done])
        self._find_open()
        self._set_free_lengths()

    def _set_free_lengths(self) -> None:
        """Compute the lengths at which no sentence has a required next token."""
        self.free_lengths = range(int((self.prefix != PAD).sum(1).max()), int(self.limit.min()))


_IMPOSSIBLE, _END = np.array(-np.inf, np.float32), np.array(EOS)  # numpy takes arrays in half the time of numbers


def with_bos(starts: Sequence[Sequence[int]], sentences: int) -> Ints:
    """Return the first tokens of the decoder (B, 1 + n): BOS and `starts`, the n tokens of each sentence, if any."""
    return np.array([[BOS, *start] for start in starts or [()] * sentences])


def length_limits(
    config: SearchConfig, lengths: Ints, longest: int | None, constraints: Sequence[Constraints] = (), begun: int = 0
) -> Ints:
    """Return the maximum tokens before EOS (B,) of sources of `lengths` (B,) with EOS. `longest` is the limit of the
    model, and `begun` is the number of tokens between BOS and the output."""
    limit = (config.max_len_a * (lengths - 1) + config.max_len_b).astype(np.int64)
    if constraints:
        limit = np.maximum(limit, [constraint.required_tokens for constraint in constraints])
    return limit if longest is None else np.minimum(limit, longest - begun)


def length_penalties(config: SearchConfig, most: int) -> Floats:
    """Compute lp(Y) (most + 1,) for |Y| from 0 to `most` tokens, including EOS. It never decreases."""
    counts = np.arange(most + 1, dtype=np.float64)
    base = counts if config.length_penalty_form == "power" else (5 + counts) / 6
    with np.errstate(over="ignore"):
        penalties: Floats = np.minimum(base**config.length_penalty, np.finfo(np.float32).max).astype(np.float32)
    return penalties


def _strategy(
    config: SearchConfig, src: Ints, lengths: Ints, longest: int, constraints: Sequence[Constraints]
) -> Strategy:
    """Create the strategy of the options, for outputs of at most `longest` tokens, including EOS."""
    if any(constraint.terms for constraint in constraints):
        if config.sampling or config.diverse_groups > 1:
            raise UserError("required terms cannot be combined with --sampling or --diverse-groups")
        return GridBeamSearch(config.beam, constraints)
    if config.sampling:
        return Sampling(config, src, lengths, longest)
    if config.diverse_groups > 1:
        return DiverseBeamSearch(config.beam, config.diverse_groups, config.diversity)
    return BeamSearch(config.beam)
