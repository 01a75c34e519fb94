"""Label-smoothed cross-entropy (§5.4), fused with the projection to the vocabulary."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmtkit.data.batch import Batch
from nmtkit.data.packing import MicroBatchTensors, PackedBatch
from nmtkit.machine.precision import product_dtype
from nmtkit.model import native_operators
from nmtkit.model.kernels import loss_kernel_on
from nmtkit.model.packed_attention import PackedSide, attends_short, kernel_for, pack_sides
from nmtkit.model.transformer import Transformer
from nmtkit.model.translation_model import TranslationModel, mask_never_output
from nmtkit.text.vocabulary import NEVER_OUTPUT

LOSS_VERSION = 2  #: version 1 gave probability to PAD and BOS
# Rows of logits in memory at a time: few enough for a CPU's cache, enough to keep a GPU busy. On a CPU, the sum of
# the gradient of the matrix in fp32 costs less with more rows of products in bf16.
_ROWS_CPU, _ROWS_CPU_BF16, _ROWS_GPU = 256, 512, 8192
_ALIGNED = 8  # rows of 16-bit logits begin at multiples of 16 bytes: GPUs multiply others several times slower
_LARGEST_FP16 = 2.0**15
_LEAST_ATTENTION = 1e-6
_IMPOSSIBLE = -1e4  # finite logit with probability 0: its divergence is 0, not NaN
_Kernel = Callable[[Tensor, Tensor, float, bool], Tensor]


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Computes logits, loss and gradient a few rows at a time, so that a batch's logits are never all in memory.

    The forward pass also computes the gradients, in the memory of the logits; the backward pass only scales them. All
    parts reuse one buffer, because allocating memory would take as long as the computation.
    """

    @staticmethod
    def forward(
        context: Any, hidden: Tensor, matrix: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        learning = context.needs_input_grad[0] or context.needs_input_grad[1]
        dtype = product_dtype(hidden)
        grad_hidden = torch.empty_like(hidden) if learning else None
        sums = hidden.new_zeros(2, dtype=torch.float32)
        rows = min(len(hidden), _rows_at_a_time(hidden.is_cuda, dtype))
        states, weights, width = hidden.to(dtype), matrix.to(dtype), len(matrix)
        has_kernel = _kernel_for(weights) is not None
        if has_kernel and width % _ALIGNED:  # logits of the added columns, and their gradients, are 0
            weights = F.pad(weights, (0, 0, 0, -width % _ALIGNED))
        grad_matrix = torch.zeros_like(weights, dtype=matrix.dtype) if context.needs_input_grad[1] else None
        products = hidden.new_empty(rows, len(weights), dtype=dtype)
        is_exact = dtype == torch.float32 or has_kernel or native_operators.serves(products)
        exact = products if is_exact else torch.empty_like(products, dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in (slice(begin, begin + rows) for begin in range(0, len(hidden), rows or 1)):
                x = states[part]
                logits = products[: len(x)]  # (rows, W rounded up to a multiple of 8 for the kernel)
                gradient = logits if exact is products else exact[: len(x)]
                torch.mm(x, weights.t(), out=logits)
                sums += _cross_entropy(logits[:, :width], gradient[:, :width], target[part], smoothing, learning)
                if grad_hidden is not None:
                    _add_products(gradient, logits, x, weights, grad_hidden[part], grad_matrix)
        nll, uniform = sums
        loss = (1.0 - smoothing) * nll + smoothing * uniform
        context.save_for_backward(grad_hidden, None if grad_matrix is None else grad_matrix[:width], loss)
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        grad_hidden, grad_matrix, loss = context.saved_tensors
        scale = gradients[0] + 0.0 * loss  # NaN if the loss is NaN: in fp16 the gradient can be finite then
        return grad_hidden.mul_(scale), None if grad_matrix is None else grad_matrix.mul_(scale), None, None


def _rows_at_a_time(on_gpu: bool, dtype: torch.dtype) -> int:
    if on_gpu:
        return _ROWS_GPU
    return _ROWS_CPU_BF16 if dtype == torch.bfloat16 else _ROWS_CPU


def _cross_entropy(logits: Tensor, exact: Tensor, target: Tensor, smoothing: float, learning: bool) -> Tensor:
    """Return two sums over rows (2,): of -log p(target), and of the mean -log p over the W' ids that may be output.

    `exact` (rows, W) may be the logits themselves. It is in fp32 unless one GPU kernel computes everything. If
    `learning`, it receives the gradient of the smoothed loss with respect to the logits, softmax - ((1 - ε)·one-hot +
    ε/W'), and 0 for `NEVER_OUTPUT`. Otherwise it is scratch memory. The logits (rows, W) are overwritten.
    """
    if native_operators.serves(exact):
        exact.copy_(logits)  # no copy if they share memory
        losses = exact.new_empty(len(exact), 2, dtype=torch.float32)
        arguments = *exact.shape, target.contiguous(), smoothing, learning, losses
        native_operators.run("cross_entropy", exact, exact, *arguments)
        return losses.sum(0)
    if (kernel := _kernel_for(logits)) is not None:
        return kernel(logits, target, smoothing, learning)
    possible = logits.size(1) - len(NEVER_OUTPUT)
    torch.log_softmax(mask_never_output(logits), -1, dtype=torch.float32, out=exact)
    nll = -exact.gather(1, target[:, None]).sum()
    _clear_never_output(exact)
    sums = torch.stack((nll, -exact.sum() / possible))
    if learning:
        exact.exp_().sub_(smoothing / possible)
        exact.scatter_add_(1, target[:, None], exact.new_full((len(target), 1), smoothing - 1.0))
        _clear_never_output(exact)
    return sums


def _kernel_for(logits: Tensor) -> _Kernel | None:
    """Return the fused kernel for logits of this dtype and device, if there is one. fp16 needs the gradient in fp32."""
    kernel = loss_kernel_on(logits.device) if logits.is_cuda and logits.dtype != torch.float16 else None
    return None if kernel is None else cast(_Kernel, kernel.cross_entropy_)


def _clear_never_output(exact: Tensor) -> None:
    for number in NEVER_OUTPUT:
        exact[:, number] = 0.0


def _add_products(
    gradient: Tensor, low: Tensor, x: Tensor, weights: Tensor, grad_hidden: Tensor, grad_matrix: Tensor | None
) -> None:
    """Write the gradient of x (rows, D), and add that of weights (W, D) if needed, given that of logits (rows, W).
    Products are in the dtype of `low`, which is scratch memory or the gradient itself."""
    if low.dtype == torch.float32:
        torch.mm(low, weights, out=grad_hidden)
        if grad_matrix is not None:
            grad_matrix.addmm_(low.t(), x)
        return
    scale = _fp16_scale(gradient, x, weights) if low.dtype == torch.float16 else None
    if scale is not None:
        gradient *= scale
    low.copy_(gradient)

    def unscaled(product: Tensor) -> Tensor:
        return product if scale is None else product.float() / scale

    grad_hidden.copy_(unscaled(low @ weights))
    if grad_matrix is not None:
        _add(unscaled(low.t() @ x), grad_matrix)


def _add(x: Tensor, total: Tensor) -> None:
    if native_operators.serves(x) and native_operators.serves(total) and total.dtype == torch.float32:
        native_operators.run("add", x, x, total, x.numel())
    else:
        total += x


def _fp16_scale(gradient: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """Return the largest scale of a gradient of logits, a scalar tensor, that keeps sums of products from overflowing
    in fp16. Unscaled, most of its values are too small for fp16."""
    norm = torch.linalg.vector_norm
    in_sums_over_rows = norm(gradient, 1, dim=0).max() * norm(x, torch.inf).float()
    in_sums_over_pieces = norm(gradient, 1, dim=1).max() * norm(weights, torch.inf).float()
    return (_LARGEST_FP16 / torch.maximum(in_sums_over_rows, in_sums_over_pieces)).clamp(max=_LARGEST_FP16)


def projected_cross_entropy(hidden: Tensor, matrix: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the sums over all rows of smoothed loss and plain negative log-likelihood, two scalars in nats.

    hidden (N, D) is the decoder's output, matrix (W, D) the projection, target (N,) the reference ids. The smoothed
    target distribution is (1 − ε)·one-hot + ε/W' (§5.4, after Szegedy et al.), with W' the number of ids that may be
    output: the softmax excludes `NEVER_OUTPUT`. Only the first sum has a gradient.
    """
    return cast(
        tuple[Tensor, Tensor],
        _ProjectedCrossEntropy.apply(hidden, matrix, target, smoothing),  # type: ignore[no-untyped-call]
    )


def alignment_loss(weights: Tensor, alignment: Tensor) -> Tensor:
    """Sum -p·log(a + 1e-6) over target and source pieces, in nats, as Marian does for a single head. a is the attention
    (B, H, T, S), p the alignment (B, T, S). The mean over heads teaches each of them."""
    return -(alignment.unsqueeze(1) * (weights.float() + _LEAST_ATTENTION).log()).sum() / weights.size(1)


def symmetric_divergence(a: Tensor, b: Tensor, matrix: Tensor) -> Tensor:
    """Sum KL(p‖q) + KL(q‖p) over all rows of the outputs a and b (N, D) of a decoder: a scalar, in nats.

    p and q are distributions over the ids that may be output. The backward pass computes their logits again.
    """
    rows = _rows_at_a_time(a.is_cuda, product_dtype(a))
    parts = zip(torch.split(a, rows), torch.split(b, rows), strict=True)
    sums = [checkpoint(_divergence, *part, matrix, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(sums).sum()


def _divergence(a: Tensor, b: Tensor, matrix: Tensor) -> Tensor:
    log_probs = []
    for hidden in (a, b):
        logits = F.linear(hidden, matrix)
        logits[:, list(NEVER_OUTPUT)] = _IMPOSSIBLE
        log_probs.append(logits.log_softmax(-1, torch.float32))
    p, q = log_probs
    return ((p.exp() - q.exp()) * (p - q)).sum()


class MicroBatchLoss(nn.Module):
    """Model and loss in one module, because DistributedDataParallel wraps `forward`, which includes the projection.

    With `r_drop` α, two dropout masks give two losses and two distributions p and q in training. The loss is then the
    mean of both plus α/4 · (KL(p‖q) + KL(q‖p)): half the loss of R-Drop, which adds both (Liang et al. 2021). With
    `guidance`, it also has `alignment_loss` with this weight, if the batch has an alignment.
    """

    def __init__(self, model: TranslationModel, smoothing: float, r_drop: float = 0.0, guidance: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing, self.r_drop, self.guidance = model, smoothing, r_drop, guidance

    def forward(self, batch: MicroBatchTensors) -> tuple[Tensor, Tensor]:
        """Return the sums over a batch's real target tokens of smoothed loss and negative log-likelihood, scalars in
        nats. A packed batch needs a Transformer."""
        if isinstance(batch, PackedBatch):
            target = batch.tgt_out[: batch.target_tokens]
        else:
            target = batch.tgt_out.flatten().index_select(0, batch.target_indices)
        passes = 2 if self.r_drop and self.training else 1
        aligned = batch.alignment if self.guidance and isinstance(batch, Batch) else None
        weights: list[Tensor] = []
        hidden = torch.cat([_decode(self.model, batch, None if aligned is None else weights) for _ in range(passes)])
        matrix, bias = self.model.output_matrix, self.model.output_bias
        if bias is not None:
            hidden, matrix = _with_bias_as_column(hidden, matrix, bias)
        loss, nll = projected_cross_entropy(hidden, matrix, target.repeat(passes), self.smoothing)
        if aligned is not None:
            loss = loss + self.guidance * torch.stack([alignment_loss(each, aligned) for each in weights]).sum()
        if passes == 1:
            return loss, nll
        first, second = hidden.chunk(2)
        return loss / 2 + self.r_drop / 4 * symmetric_divergence(first, second, matrix), nll / 2


def _decode(model: TranslationModel, batch: MicroBatchTensors, weights: list[Tensor] | None) -> Tensor:
    """Return the decoder's output (target_tokens, D) for the real target tokens of a batch. The attention (B, H, T, S)
    of a Transformer's last layer to the source is appended to `weights`, if given."""
    if isinstance(batch, PackedBatch):
        return _decode_packed(cast(Transformer, model), batch)
    record = {} if weights is None else {"record_last": weights}
    hidden = model.decode(batch.tgt_in, model.encode(batch.src, batch.source_lengths), **record)
    return hidden.flatten(0, 1).index_select(0, batch.target_indices)


def _decode_packed(model: Transformer, batch: PackedBatch) -> Tensor:
    """Return the decoder's output (target_tokens, D) for the real target tokens of a packed batch."""
    if not model.config.source_end:
        batch = batch.without_source_end()
    matrix = model.output_matrix
    precision = product_dtype(matrix)
    kernel = kernel_for(model.config, precision, batch.src.device)
    fillers = len(batch.src) - batch.source_tokens, len(batch.tgt_in) - batch.target_tokens
    source = PackedSide(batch.source_lengths, batch.source_tokens, batch.longest[0], fillers[0])
    target = PackedSide(batch.target_lengths, batch.target_tokens, batch.longest[1], fillers[1])
    short = kernel is None and attends_short(model.config, matrix, precision, max(batch.longest))
    packings = pack_sides(source, target, kernel, short)
    return model.decode_packed(batch.src, packings[0], batch.tgt_in, packings[1])[: batch.target_tokens]


def _with_bias_as_column(hidden: Tensor, matrix: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Append ones to hidden (N, D) and the bias (W,) to matrix (W, D) as a column, so their product includes the bias.
    Zeros pad the width to a multiple of 8, because GPUs multiply such matrices faster."""
    padding = -(hidden.size(1) + 1) % 8
    ones = F.pad(hidden.new_ones(len(hidden), 1), (0, padding))
    biases = F.pad(bias.unsqueeze(1), (0, padding))
    return torch.cat((hidden, ones), dim=1), torch.cat((matrix, biases), dim=1)


def perplexity(nll: float) -> float:
    """Compute exp(nll) of a negative log-likelihood in nats per piece; infinite if it overflows in fp32."""
    return math.exp(nll) if nll < 88 else math.inf
