"""The parts of a search with plain torch that do not depend on the architecture."""

from abc import abstractmethod
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.inference.protocol import AttentionWeights, InferenceModel, columns_of, shift_right
from nmtkit.inference.top_k import top_k
from nmtkit.machine.precision import precision_name
from nmtkit.model.kernels import loss_kernel_on
from nmtkit.model.translation_model import TranslationModel

_SCORED = 1024  # positions that are projected to the vocabulary together: more logits take too much memory


class TorchInference(InferenceModel):
    """Searches with the modules of a model in evaluation mode, on their device, without changing them."""

    model: Any  # the architecture's class

    def __init__(self, model: TranslationModel) -> None:
        matrix = model.output_matrix
        self.model, self.device, self.precision = model, matrix.device, precision_name(matrix.dtype)
        self.vocabulary_size = matrix.size(0)

    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        """As `InferenceModel.encode`."""
        return self.model.encode(src, lengths)

    @abstractmethod
    def logits(self, tokens: Tensor, state: Any) -> Tensor:
        """Feed tokens (R,) and return the logits (R, W) of the next ones, -inf for `NEVER_OUTPUT`. The caller may
        modify them."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """As `InferenceModel.step`."""
        return log_softmax(self.logits(tokens, state))

    def best_step(self, tokens: Tensor, state: Any, count: int, excluded: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """As `InferenceModel.best_step`. On a GPU, all but the best logits stay in the model's precision."""
        if self.device.type != "cuda":
            return super().best_step(tokens, state, count, excluded)
        logits = self.logits(tokens, state)
        normalizer = log_sum_exp(logits)
        if excluded:
            logits.index_fill_(1, columns_of(excluded, logits.device), -torch.inf)
        best, columns = top_k(logits, count)
        return best.float() - normalizer, columns

    def score(self, src: Tensor, lengths: Tensor, tgt: Tensor, tgt_lengths: Tensor) -> Tensor:
        """As `InferenceModel.score`, in one pass over all positions."""
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
        """As `InferenceModel.attention`, for a model that attends only from the decoder to the source."""
        weights = AttentionWeights()
        self.model.decode(tgt_in, self.encode(src, lengths), weights.cross)
        return weights

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int | None) -> Tensor:
        """As `InferenceModel.alignment`."""
        number = self.alignment_layer(layer)
        return self.attention(src, lengths, tgt_in).cross[number].float().mean(1)


def log_sum_exp(logits: Tensor) -> Tensor:
    """The log of the sum of exponentials (R, 1) in fp32, of logits (R, W) in any precision, without a copy in fp32.

    Without nmtkit's kernel, the terms are rounded like the logits, and added up in fp32: their error is far below that
    of the logits.
    """
    if (kernel := loss_kernel_on(logits.device)) is not None:
        return cast(Tensor, kernel.log_sum_exp(logits))
    largest = logits.amax(1, keepdim=True)
    return (logits - largest).exp_().sum(1, keepdim=True, dtype=torch.float32).log_() + largest


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax of logits (R, W) in fp32, written over them if they are fp32 already: for a large vocabulary, fresh
    memory takes longer than the softmax."""
    if logits.dtype != torch.float32 or logits.requires_grad:
        return logits.log_softmax(-1, torch.float32)
    return torch.log_softmax(logits, -1, out=logits)
