"""Grid beam search: outputs that contain required terms (Hokamp & Liu 2017).

The progress of a hypothesis is the number of tokens of the terms that it contains, including a term that has begun at
its end. There is a bank of K = `beam` slots for each progress. Hypotheses compete only with others of the same
progress, so terms appear where they cost least. The candidates are the best tokens and all tokens that continue a term.
An output may end when it contains all terms.

Letters as in `strategies`; A tokens that begin or continue a term.
"""

from collections.abc import Sequence

import numpy as np

from nmtkit.decoding.rules import Constraints, Term, term_length
from nmtkit.decoding.strategies import Frontier, Selection
from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.top_k import top_k
from nmtkit.text.vocabulary import EOS, PAD

State = tuple[frozenset[Term], tuple[int, ...]]  # the missing terms, and the part of one at the end


class Terms:
    """An automaton that follows the required terms of a sentence through an output."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.start: State = frozenset(terms), ()
        self.total = sum(map(term_length, self.start[0]))
        self._advances: dict[State, dict[int, int]] = {}

    def progress(self, state: State) -> int:
        """Return how many of the `total` tokens of the terms the output contains."""
        missing, begun = state
        return self.total - sum(map(term_length, missing)) + len(begun)

    def follow(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        missing, begun = state
        end = (*begun, token)
        missing = frozenset(term for term in missing if all(end[-len(form) :] != form for form in term))
        forms = [form for term in missing for form in term]
        lengths = (n for n in range(len(end), 0, -1) for form in forms if len(form) > n and end[-n:] == form[:n])
        return missing, end[len(end) - next(lengths, 0) :]

    def advances(self, state: State) -> dict[int, int]:
        """Return the tokens that begin or continue a term, each with the progress after it."""
        if state not in self._advances:
            missing, begun = state
            leading = {
                form[n]
                for term in missing
                for form in term
                for n in range(len(form))
                if n <= len(begun) and begun[len(begun) - n :] == form[:n]
            }
            self._advances[state] = {token: self.progress(self.follow(state, token)) for token in leading}
        return self._advances[state]


class GridBeamSearch:
    """Chooses the K best candidates of each progress, from 0 to the number of tokens of all terms."""

    def __init__(self, beam: int, constraints: Sequence[Constraints]) -> None:
        """`constraints` has one entry for each sentence of `src`."""
        self.terms = [Terms(constraint.terms) for constraint in constraints]
        self.ends = np.array([terms.total for terms in self.terms])  # (B,)
        self.banks = int(self.ends.max()) + 1
        self.width, self.slots = beam, beam * self.banks
        self.starts: Sequence[int] = (0,)
        self._states = {(number, ()): terms.start for number, terms in enumerate(self.terms)}

    def choose(self, log_probs: Floats, frontier: Frontier) -> Selection:
        leading, after, otherwise = self._prospects(frontier)
        unfinished = otherwise < self.ends[frontier.sentence_of_row]
        log_probs[unfinished, EOS] = -np.inf
        steps = np.take_along_axis(log_probs, leading, 1)
        np.put_along_axis(log_probs, leading, -np.inf, 1)
        others, other_tokens = top_k(log_probs, self.width)
        np.put_along_axis(log_probs, leading, steps, 1)  # this step may choose again
        steps, tokens = np.concatenate([steps, others], 1), np.concatenate([leading, other_tokens], 1)
        after = np.concatenate([after, np.broadcast_to(otherwise[:, None], other_tokens.shape)], 1)
        return Selection(
            steps, tokens, *self._best_of_each(frontier, frontier.totals(steps), frontier.by_slot(after, -1))
        )

    def _prospects(self, frontier: Frontier) -> tuple[Ints, Ints, Ints]:
        """Return tokens (R, A) that begin or continue a term, the progress after each, and after other tokens (R,)."""
        states, advances, otherwise = {}, [], []
        prefixes = map(tuple, frontier.tokens.tolist())
        for sentence, prefix in zip(frontier.sentence_of_row.tolist(), prefixes, strict=True):
            terms = self.terms[sentence]
            state = self._states.get((sentence, prefix))  # known if this step chooses again
            if state is None:
                state = terms.follow(self._states[sentence, prefix[:-1]], prefix[-1])
            states[sentence, prefix] = state
            advances.append(terms.advances(state))
            otherwise.append(terms.progress((state[0], ())))
        self._states = states
        most = max(map(len, advances))
        leading = [[*own, *[PAD] * (most - len(own))] for own in advances]
        after = [[*own.values(), *[0] * (most - len(own))] for own in advances]
        shape = (len(advances), most)
        return np.array(leading, np.int64).reshape(shape), np.array(after, np.int64).reshape(shape), np.array(otherwise)

    def _best_of_each(self, frontier: Frontier, totals: Floats, after: Ints) -> tuple[Floats, Ints]:
        """Return totals and indices (b, P) of the K best candidates of each progress from totals, `after` (b, P, c)."""
        last = self.ends[frontier.sentences]
        vacant = frontier.vacant.reshape(-1, self.banks, self.width).any(2)
        # if K outputs with all terms have finished, there is no slot for one more
        ended = ~np.take_along_axis(vacant, last[:, None], 1)
        totals, after = totals.reshape(len(last), -1), after.reshape(len(last), -1)
        totals = np.where(ended, np.float32(-np.inf), totals)
        none = np.float32(-np.inf)
        best = [top_k(np.where(after == bank, totals, none), self.width) for bank in range(self.banks)]
        return np.concatenate([values for values, _ in best], 1), np.concatenate([index for _, index in best], 1)
