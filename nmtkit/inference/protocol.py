"""The protocol between the search and a model, in numpy. `decoding` uses nothing else of a model.

A backend subclasses `InferenceModel` and implements `encode`, `start`, `step` and `state_bytes`. The other methods have
default implementations based on these, which a backend overrides where it has a faster way.

Letters: B sentences, S source length, T target length, R rows (open hypotheses, in decoder order), W vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nmtkit.errors import UserError
from nmtkit.inference.arrays import Bools, Floats, Ints
from nmtkit.inference.shortlist import Ids, Shortlist
from nmtkit.inference.top_k import top_k
from nmtkit.text.vocabulary import BOS
from nmtkit.wording import counted


class InferenceState(Protocol):
    """The state of a decoder between two steps. Each row belongs to a sentence; a sentence's rows are adjacent."""

    def reorder(self, origins: Ints) -> None:
        """Set row i to the former row `origins[i]`, for origins (R',).

        Rows may be repeated, dropped, and moved within a sentence. Sentences without a row leave the batch.
        """


@dataclass
class AttentionWeights:
    """The attention weights of one pass, with an array or a tensor for each layer. The weights of a query sum to 1."""

    encoder: list[Any] = field(default_factory=list)  # (B, H, S, S)
    decoder: list[Any] = field(default_factory=list)  # (B, H, T, T)
    cross: list[Any] = field(default_factory=list)  # (B, H, T, S)


class RecordedAttention:
    """The attention weights (rows of all steps so far, S) to the source, in the order of the steps."""

    def __init__(self, source_length: int) -> None:
        self.weights = np.zeros((0, source_length), np.float32)
        self.begin = self.end = 0  # of the rows of the last step

    def add_step(self, rows: int) -> Floats:
        """Append zeros (rows, S) for a step, and return them for the step to add its weights."""
        self.begin, self.end = self.end, self.end + rows
        if self.end > len(self.weights):
            self.weights = np.concatenate([self.weights, np.zeros((self.end, self.weights.shape[1]), np.float32)])
        return self.weights[self.begin : self.end]


class InferenceModel(ABC):
    """A model that the search can use."""

    device: str  # that it computes on: "cpu", "cuda:0"
    vocabulary_size: int  # W, of the target
    precision: str  # number format, for people: "fp32, AVX2"
    faster_precision: str | None = None  # a `--precision` that is faster on this device, if one is known
    longest_sequence: int | None = None  # most tokens of a source or an output, without EOS or BOS; None: any number
    attention_layers: int = 0  # decoder layers whose attention to the source can be shown
    shortlist: Shortlist | None = None  # for searches, see `restricted_to`
    step_bytes: int = 0  # that `step` takes for each log-probability beyond its result

    @abstractmethod
    def encode(self, src: Ints, lengths: Ints) -> Any:
        """Encode src (B, S), whose rows have `lengths` (B,) tokens, at least 1. Returns the `memory` for `start`."""

    @abstractmethod
    def start(self, memory: Any) -> Any:
        """Return the `InferenceState` of B rows, one for each sentence, before their first token."""

    @abstractmethod
    def step(self, tokens: Ints, state: Any) -> Floats:
        """Feed tokens (R,), and return the log-probabilities (R, W) of the next tokens, in fp32.

        They are -inf for `NEVER_OUTPUT`. The caller may modify them; the next step of the state overwrites them.
        """

    @abstractmethod
    def state_bytes(self, tokens: int) -> int:
        """Return the bytes that a state keeps for a hypothesis of `tokens` tokens."""

    def best_step(self, tokens: Ints, state: Any, count: int, excluded: tuple[int, ...]) -> tuple[Floats, Ints]:
        """Feed tokens (R,) like `step`, but return only the `count` highest log-probabilities of each row and their
        tokens, both (R, count), highest first, without the tokens in `excluded`."""
        log_probs = self.step(tokens, state)
        if excluded:
            log_probs[:, excluded] = -np.inf
        return top_k(log_probs, count)

    def restricted_to(self, shortlists: Sequence[Ids]) -> "InferenceModel":
        """Restrict the outputs of the model to the ids of one shortlist for each of B sentences.

        The ids are in ascending order. Probabilities are normalized over these ids; all others are 0.
        """
        return _Restricted(self, shortlists)

    def score(self, src: Ints, lengths: Ints, tgt: Ints, tgt_lengths: Ints) -> Floats:
        """Return the log-probability (B, T) of each token of tgt (B, T), whose rows have `tgt_lengths` (B,) tokens.

        The last token of a row is EOS. Values beyond the end of a row have no meaning.
        """
        log_probs = np.zeros(tgt.shape, np.float32)
        state = self.start(self.encode(src, lengths))
        tgt_in = np.concatenate([np.full_like(tgt[:, :1], BOS), tgt[:, :-1]], 1)
        rows = np.arange(len(tgt))  # those that have not ended
        for t in range(tgt.shape[1]):
            (kept,) = (tgt_lengths[rows] > t).nonzero()
            rows = rows[kept]
            state.reorder(kept)
            step = self.step(tgt_in[rows, t], state)
            log_probs[rows, t] = step[np.arange(len(rows)), tgt[rows, t]]
        return log_probs

    def attention(self, src: Ints, lengths: Ints, tgt_in: Ints) -> AttentionWeights:
        """Return the weights of every layer and head for src (B, S) with `lengths` (B,) and tgt_in (B, T).

        Raises UserError for a model without attention.
        """
        raise UserError(_NO_ATTENTION)

    def alignment(self, src: Ints, lengths: Ints, tgt_in: Ints, layer: int | None) -> Floats:
        """Return the attention (B, T, S) of decoder layer `alignment_layer(layer)` to the source, averaged over heads.

        Raises UserError for a model without attention.
        """
        raise UserError(_NO_ATTENTION)

    def record_attention(self, state: Any, layer: int) -> RecordedAttention | None:
        """Record the attention to the source of each later step of the state: the mean over the heads of this layer.

        `layer` is an index. Returns None if the model can compute the attention only of given outputs, see `alignment`.
        """
        return None

    def alignment_layer(self, layer: int | None) -> int:
        """Return the index, from 0, of the decoder layer with this number, counted from 1.

        The default is the second to last layer, which aligns better than the last (Garg et al. 2019), but not the first
        of two, which hardly aligns. Raises UserError if there is no such layer.
        """
        if not self.attention_layers:
            raise UserError(_NO_ATTENTION)
        if layer is not None and layer > self.attention_layers:
            raise UserError(
                f"--alignment-layer {layer}: the model has {counted(self.attention_layers, 'decoder layer')} with "
                "attention to the source"
            )
        last = self.attention_layers - 1
        return min(last, max(1, last - 1)) if layer is None else layer - 1


@dataclass
class _RestrictedState:
    """The state of a model, with the tokens forbidden in each row (R, W)."""

    state: InferenceState
    forbidden: Bools

    def reorder(self, origins: Ints) -> None:
        self.state.reorder(origins)
        self.forbidden = self.forbidden[origins]


class _Restricted(InferenceModel):
    """Restricts a model to shortlists by masking after each step. It is the reference for faster implementations."""

    def __init__(self, model: InferenceModel, shortlists: Sequence[Ids]) -> None:
        self.model, self.shortlists = model, shortlists
        self.device, self.vocabulary_size, self.precision = model.device, model.vocabulary_size, model.precision
        self.longest_sequence = model.longest_sequence

    def encode(self, src: Ints, lengths: Ints) -> Any:
        return self.model.encode(src, lengths)

    def start(self, memory: Any) -> _RestrictedState:
        forbidden = np.ones((len(self.shortlists), self.vocabulary_size), np.bool_)
        for row, ids in zip(forbidden, self.shortlists, strict=True):
            row[ids] = False
        return _RestrictedState(self.model.start(memory), forbidden)

    def step(self, tokens: Ints, state: _RestrictedState) -> Floats:
        log_probs = self.model.step(tokens, state.state)
        log_probs[state.forbidden] = -np.inf
        log_probs -= log_sum_exp(log_probs, 1)[:, None]
        return log_probs

    def state_bytes(self, tokens: int) -> int:
        return self.model.state_bytes(tokens)


_NO_ATTENTION = "this kind of model has no attention to show: omit --alignment and --attention-html"


def log_sum_exp(x: Floats, axis: int) -> Floats:
    """Compute the log-sum-exp of x (…) along an axis, which is removed."""
    peak = x.max(axis, keepdims=True)
    peak[peak == -np.inf] = 0.0
    with np.errstate(divide="ignore"):  # the log of 0 is -inf
        total: Floats = np.log(np.exp(x - peak).sum(axis))
    total += peak.squeeze(axis)
    return total
