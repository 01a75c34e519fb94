"""The parts of inference with torch that do not depend on the architecture, in tensors.

`torch_backend` connects them to the search. The letters of shapes are those of `protocol`.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.inference.ensemble import EnsembleState
from nmtkit.inference.protocol import AttentionWeights
from nmtkit.inference.sentence_rows import RowState
from nmtkit.machine.precision import precision_name
from nmtkit.model.kernels import loss_kernel_on
from nmtkit.model.translation_model import TranslationModel
from nmtkit.text.vocabulary import BOS

_SCORED = 1024  # positions that are projected to the vocabulary together: more logits take too much memory
_GROUP = 16  # columns that share a maximum in `top_k`
_SMALL = 1 << 15  # scores up to which `topk` is fastest; it may order equal ones differently

TorchState = RowState | EnsembleState  #: of a decoder between two steps


class FixedModel(ABC):
    """The interface that `fixed_search` needs, like `InferenceModel`, but with tensors on one device.

    Methods of this module's classes run under `torch.inference_mode`.
    """

    device: torch.device
    longest_sequence: int | None = None

    @abstractmethod
    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        """Encode src (B, S) with lengths (B,), see `InferenceModel.encode`."""

    @abstractmethod
    def start(self, memory: Any) -> Any:
        """Return the `TorchState` of B rows before their first token, see `InferenceModel.start`."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Feed tokens (R,), and return the next log-probabilities (R, W), see `InferenceModel.step`."""

    def best_step(self, tokens: Tensor, state: Any, count: int, excluded: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the highest log-probabilities and their tokens, both (R, count), see `InferenceModel.best_step`."""
        log_probs = self.step(tokens, state)
        if excluded:
            log_probs.index_fill_(1, columns_of(excluded, log_probs.device), -torch.inf)
        return top_k(log_probs, count)


class TorchInference(FixedModel):
    """Searches with the modules of a model in evaluation mode, on their device, without changing them."""

    model: Any  # the architecture's class
    attention_layers = 0

    def __init__(self, model: TranslationModel) -> None:
        matrix = model.output_matrix
        self.model, self.device, self.precision = model, matrix.device, precision_name(matrix.dtype)
        self.vocabulary_size = matrix.size(0)

    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        return self.model.encode(src, lengths)

    @abstractmethod
    def state_bytes(self, tokens: int) -> int:
        """Return the bytes that a state keeps for a hypothesis, see `InferenceModel.state_bytes`."""

    @abstractmethod
    def logits(self, tokens: Tensor, state: Any) -> Tensor:
        """Feed tokens (R,), and return the logits (R, W) of the next ones, -inf for `NEVER_OUTPUT`. The caller may
        modify them."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        return log_softmax(self.logits(tokens, state))

    def best_step(self, tokens: Tensor, state: Any, count: int, excluded: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the highest log-probabilities and their tokens, both (R, count). On a GPU, only these are in fp32."""
        if self.device.type != "cuda":
            return super().best_step(tokens, state, count, excluded)
        logits = self.logits(tokens, state)
        normalizer = log_sum_exp(logits)
        if excluded:
            logits.index_fill_(1, columns_of(excluded, logits.device), -torch.inf)
        best, columns = top_k(logits, count)
        return best.float() - normalizer, columns

    def score(self, src: Tensor, lengths: Tensor, tgt: Tensor, tgt_lengths: Tensor) -> Tensor:
        """Return the log-probability (B, T) of each token of tgt (B, T), computed in one pass over all positions."""
        log_probs = torch.zeros(tgt.shape, dtype=torch.float32, device=tgt.device)
        tgt_in, size = shift_right(tgt), max(1, _SCORED // tgt.size(1))
        for start in range(0, len(tgt), size):
            rows = slice(start, start + size)
            S, T = int(lengths[rows].max()), int(tgt_lengths[rows].max())
            memory = self.encode(src[rows, :S], lengths[rows])
            logits = self.model.project(self.model.decode(tgt_in[rows, :T], memory))
            own = logits.log_softmax(-1, torch.float32).gather(2, tgt[rows, :T].unsqueeze(2))
            log_probs[rows, :T] = own.squeeze(2)
        return log_probs

    def attention(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> AttentionWeights:
        """Return the cross-attention weights for src (B, S) with `lengths` (B,) and tgt_in (B, T).

        See `InferenceModel.attention`. Models with self-attention must override this.
        """
        weights = AttentionWeights()
        self.model.decode(tgt_in, self.encode(src, lengths), weights.cross)
        return weights

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int) -> Tensor:
        """Return the attention (B, T, S) of the decoder layer with this index, from 0, averaged over heads."""
        weights: Tensor = self.attention(src, lengths, tgt_in).cross[layer]
        return weights.float().mean(1)


class FixedEnsemble(FixedModel):
    """An ensemble of models for `fixed_search`, like `Ensemble`."""

    def __init__(self, models: Sequence[FixedModel]) -> None:
        """`models` are one or more models with the same vocabularies and on the same device."""
        self.models, self.device = models, models[0].device
        limits = [model.longest_sequence for model in models if model.longest_sequence is not None]
        self.longest_sequence = min(limits, default=None)

    def encode(self, src: Tensor, lengths: Tensor) -> list[Any]:
        return [model.encode(src, lengths) for model in self.models]

    def start(self, memory: list[Any]) -> EnsembleState:
        return EnsembleState([model.start(own) for model, own in zip(self.models, memory, strict=True)])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        log_probs = [model.step(tokens, own) for model, own in zip(self.models, state.states, strict=True)]
        return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


@functools.lru_cache(maxsize=8)
def columns_of(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a tensor (n,) of token ids on a device. It is cached, because the host waits for each copy to a GPU."""
    return torch.tensor(tokens, device=device)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest of each row of scores (R, W) and their columns, both (R, k), highest first; all if k > W.

    In long rows they are found in two stages, because they are in the k groups with the highest maxima: `topk` passes
    over its rows several times; in this way it reads only a sixteenth of them.
    """
    if scores.numel() <= _SMALL or scores.size(1) // _GROUP < 4 * k:
        values, columns = scores.topk(min(k, scores.size(1)))
        return values, columns
    width = scores.size(1)
    groups = width // _GROUP
    maxima = torch.unflatten(scores[:, : groups * _GROUP], 1, (_GROUP, groups)).amax(1)  # column c: group c % groups
    members = torch.arange(_GROUP, device=scores.device) * groups
    columns = (maxima.topk(k).indices.unsqueeze(2) + members).flatten(1)
    rest = torch.arange(groups * _GROUP, width, device=scores.device).expand(scores.size(0), -1)
    columns = torch.cat([columns, rest], dim=1)
    values, index = scores.gather(1, columns).topk(k)
    return values, columns.gather(1, index)


def shift_right(tgt: Tensor) -> Tensor:
    """Return the decoder's input (B, T) for outputs (B, T): BOS first, without the last token."""
    return torch.cat([torch.full_like(tgt[:, :1], BOS), tgt[:, :-1]], dim=1)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Compute the log-sum-exp (R, 1) in fp32 of logits (R, W) in any precision, without a copy in fp32.

    Without nmtkit's kernel, the terms are rounded like the logits and added in fp32. Their error is far below the error
    of the logits.
    """
    if (kernel := loss_kernel_on(logits.device)) is not None:
        return cast(Tensor, kernel.log_sum_exp(logits))
    largest = logits.amax(1, keepdim=True)
    return (logits - largest).exp_().sum(1, keepdim=True, dtype=torch.float32).log_() + largest


def log_softmax(logits: Tensor) -> Tensor:
    """Compute the log-softmax (R, W) of logits (R, W) in fp32. Logits in fp32 are overwritten, because for a large
    vocabulary allocating memory takes longer than the softmax."""
    if logits.dtype != torch.float32 or logits.requires_grad:
        return logits.log_softmax(-1, torch.float32)
    return torch.log_softmax(logits, -1, out=logits)
