"""Label-smoothed cross-entropy (§5.4), fused with the projection to the vocabulary."""

import math
from typing import Any, cast

import torch
from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.model.protocol import TranslationModel

# Rows of logits held at a time: small enough for a CPU's cache, large enough to keep a GPU busy.
_ROWS_CPU, _ROWS_GPU = 1024, 8192
_LARGEST_FP16 = 2.0**15


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Computes logits, loss and gradient a few rows at a time, so that the logits of a batch never exist as a whole.

    Forward computes the gradients too, in the memory of the logits; backward only scales them. All parts reuse one
    buffer: allocating memory would take as long as the computation in it.
    """

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, matrix: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        N, W = hidden.size(0), matrix.size(0)
        learning = context.needs_input_grad[0] or context.needs_input_grad[1]
        dtype = _dtype_of_products(hidden)
        grad_hidden = torch.empty_like(hidden) if learning else None
        grad_matrix = torch.zeros_like(matrix) if learning else None
        loss, nll = hidden.new_zeros((), dtype=torch.float32), hidden.new_zeros((), dtype=torch.float32)
        rows = min(N, _ROWS_GPU if hidden.is_cuda else _ROWS_CPU)
        weights, states = matrix.to(dtype), hidden.to(dtype)
        products = hidden.new_empty(rows, W, dtype=dtype)
        exact = products if dtype == torch.float32 else hidden.new_empty(rows, W, dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in (slice(begin, begin + rows) for begin in range(0, N, rows or 1)):
                x, wanted = states[part], target[part, None]
                logits, log_probs = products[: len(x)], exact[: len(x)]  # (rows, W)
                torch.mm(x, weights.t(), out=logits)
                torch.log_softmax(logits, -1, dtype=torch.float32, out=log_probs)
                part_nll = -log_probs.gather(1, wanted).sum()
                nll += part_nll
                loss += (1.0 - smoothing) * part_nll - smoothing / W * log_probs.sum()
                if grad_hidden is not None and grad_matrix is not None:
                    # d loss / d logits = softmax − ((1 − ε)·one-hot + ε / W)
                    gradient = log_probs.exp_().sub_(smoothing / W)
                    gradient.scatter_add_(1, wanted, gradient.new_full(wanted.shape, smoothing - 1.0))
                    scale = _fp16_scale(gradient, x, weights) if dtype == torch.float16 else None
                    if scale is not None:
                        gradient *= scale
                    low = logits.copy_(gradient)  # no copy if they share memory
                    by_row, by_piece = low @ weights, low.t() @ x
                    if scale is not None:
                        by_row, by_piece = by_row.float() / scale, by_piece.float() / scale
                    grad_hidden[part] = by_row
                    grad_matrix += by_piece
        context.save_for_backward(grad_hidden, grad_matrix, loss)
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        grad_hidden, grad_matrix, loss = context.saved_tensors
        scale = gradients[0] + 0.0 * loss  # NaN if the loss is NaN: in fp16 the gradient can be finite then
        return grad_hidden * scale, grad_matrix * scale, None, None


def _dtype_of_products(x: Tensor) -> torch.dtype:
    """The dtype in which autocast would multiply x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _fp16_scale(gradient: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """The largest scale for a gradient of logits, mostly too small for fp16, without overflow in sums of products.

    The trainer's loss scaling comes later. A tensor, so that the host does not wait for a GPU.
    """
    norm = torch.linalg.vector_norm
    in_sums_over_rows = norm(gradient, 1, dim=0).max() * norm(x, torch.inf).float()
    in_sums_over_pieces = norm(gradient, 1, dim=1).max() * norm(weights, torch.inf).float()
    return (_LARGEST_FP16 / torch.maximum(in_sums_over_rows, in_sums_over_pieces)).clamp(max=_LARGEST_FP16)


def projected_cross_entropy(hidden: Tensor, matrix: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sums over all rows of the smoothed loss and of the plain negative log-likelihood, in nats.

    hidden (N, D) is the decoder's output, matrix (W, D) the projection, target (N,) the reference ids. The smoothed
    target distribution is (1 − ε)·one-hot + ε/W (Szegedy et al., as §5.4 cites it). Only the first sum has a gradient.
    """
    return cast(
        tuple[Tensor, Tensor],
        _ProjectedCrossEntropy.apply(hidden, matrix, target, smoothing),  # type: ignore[no-untyped-call]
    )


def batch_loss(model: TranslationModel, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """The sums of smoothed loss and negative log-likelihood over the real target tokens of a batch."""
    hidden = model.decode(batch.tgt_in, model.encode(batch.src, batch.source_lengths)).flatten(0, 1)  # (B·T, D)
    hidden = hidden.index_select(0, batch.target_indices)
    target = batch.tgt_out.flatten().index_select(0, batch.target_indices)
    return projected_cross_entropy(hidden, model.output_matrix, target, smoothing)


def perplexity(nll: float) -> float:
    """exp(nll) of the nats per piece; infinite where it overflows."""
    return math.exp(nll) if nll < 700 else math.inf
