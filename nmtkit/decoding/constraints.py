"""Required terms: a beam for each number of their tokens that the output has so far (Hokamp & Liu 2017).

Progress counts the tokens of the terms in the output, and of a term begun at its end. A hypothesis competes only with
those of the same progress, so terms appear where they cost least. All tokens that continue a term are candidates beside
the best ones, and an output may end when it has all terms.

Letters as in `strategies`; L progress that is still to be made from 0, A tokens that lead further.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.strategies import Frontier, Selection
from nmtkit.inference.top_k import top_k
from nmtkit.vocab import EOS, PAD

State = tuple[frozenset[tuple[int, ...]], tuple[int, ...]]  # terms that are missing, and how much of one is at the end


class Terms:
    """How far an output has come with the terms of a sentence."""

    def __init__(self, terms: Sequence[tuple[int, ...]]) -> None:
        self.start: State = frozenset(terms), ()
        self.total = sum(map(len, self.start[0]))
        self._advances: dict[State, dict[int, int]] = {}

    def progress(self, state: State) -> int:
        """Tokens that are there, of `total`."""
        missing, begun = state
        return self.total - sum(map(len, missing)) + len(begun)

    def follow(self, state: State, token: int) -> State:
        """The state after one more token."""
        missing, begun = state
        end = (*begun, token)
        missing = frozenset(term for term in missing if end[-len(term) :] != term)
        lengths = (n for n in range(len(end), 0, -1) for term in missing if len(term) > n and end[-n:] == term[:n])
        return missing, end[len(end) - next(lengths, 0) :]

    def advances(self, state: State) -> dict[int, int]:
        """The tokens that begin a term or take one further, with the progress after them."""
        if state not in self._advances:
            self._advances[state] = {token: self.progress(self.follow(state, token)) for token in self._leading(state)}
        return self._advances[state]

    def _leading(self, state: State) -> set[int]:
        missing, begun = state
        return {
            term[n]
            for term in missing
            for n in range(len(term))
            if n <= len(begun) and begun[len(begun) - n :] == term[:n]
        }


class GridBeamSearch:
    """The K best candidates of each progress from 0 to that of all terms."""

    def __init__(self, beam: int, constraints: Sequence[Constraints], device: torch.device) -> None:
        """`constraints` are those of each sentence of `src`."""
        self.terms = [Terms(constraint.terms) for constraint in constraints]
        self.ends = torch.tensor([terms.total for terms in self.terms], device=device)  # (B,)
        self.banks = int(self.ends.max()) + 1
        self.width, self.places = beam, beam * self.banks
        self.starts: Sequence[int] = (0,)
        self._states = {(number, ()): terms.start for number, terms in enumerate(self.terms)}

    def choose(self, log_probs: Tensor, frontier: Frontier) -> Selection:
        leading, after, otherwise = self._prospects(frontier)
        unfinished = otherwise < self.ends[frontier.owners]
        log_probs[:, EOS].masked_fill_(unfinished, -torch.inf)
        steps = log_probs.gather(1, leading)
        others, other_tokens = top_k(log_probs.scatter(1, leading, -torch.inf), self.width)
        steps, tokens = torch.cat([steps, others], dim=1), torch.cat([leading, other_tokens], dim=1)
        after = torch.cat([after, otherwise.unsqueeze(1).expand_as(other_tokens)], dim=1)
        return Selection(
            steps, tokens, *self._best_of_each(frontier, frontier.totals(steps), frontier.by_place(after, -1))
        )

    def _prospects(self, frontier: Frontier) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (R, A) that take a term further, the progress after each, and that after any other token (R,)."""
        states, advances, otherwise = {}, [], []
        for owner, prefix in zip(frontier.owners.tolist(), map(tuple, frontier.tokens.tolist()), strict=True):
            terms, state = self.terms[owner], self._states.get((owner, prefix))  # there if this step chooses again
            if state is None:
                state = terms.follow(self._states[owner, prefix[:-1]], prefix[-1])
            states[owner, prefix] = state
            advances.append(terms.advances(state))
            otherwise.append(terms.progress((state[0], ())))
        self._states = states
        most = max(map(len, advances))
        leading = [[*own, *[PAD] * (most - len(own))] for own in advances]
        after = [[*own.values(), *[0] * (most - len(own))] for own in advances]
        device = frontier.rows.device
        return (
            torch.tensor(leading, dtype=torch.long, device=device),
            torch.tensor(after, dtype=torch.long, device=device),
            torch.tensor(otherwise, device=device),
        )

    def _best_of_each(self, frontier: Frontier, totals: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """The K best of candidates (b, P, c) for each progress: their totals and numbers (b, P)."""
        last = self.ends[frontier.sentences].unsqueeze(1)
        vacant = frontier.vacant.view(-1, self.banks, self.width).any(2)
        ended = ~vacant.gather(1, last)  # K outputs have all terms: no other can join them
        totals, after = totals.flatten(1).masked_fill(ended, -torch.inf), after.flatten(1)
        best = [totals.masked_fill(after != bank, -torch.inf).topk(self.width) for bank in range(self.banks)]
        return torch.cat([values for values, _ in best], dim=1), torch.cat([index for _, index in best], dim=1)
