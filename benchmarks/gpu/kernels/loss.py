"""The kernel of `nmtkit.model.loss_kernel` with loads and stores of 16 bytes, and rows without a loss.

Loads and stores are masked by the width alone, because Triton loads two bytes at a time under other masks. Rows
must begin at multiples of `ALIGNED` elements.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtkit.text.vocabulary import NEVER_OUTPUT

ALIGNED = 64


@triton.jit
def _load(logits, column, width, pad, bos):
    """Load logits, with -inf for columns that are never output."""
    x = tl.load(logits + column, mask=column < width, other=-float("inf")).to(tl.float32)
    return tl.where((column < width) & (column != pad) & (column != bos), x, -float("inf"))


@triton.jit
def _rows(
    logits, targets, losses, stride, smoothing,
    width: tl.constexpr, pad: tl.constexpr, bos: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    columns = tl.arange(0, block)
    largest = tl.full((block,), -1e30, tl.float32)
    total = tl.zeros((block,), tl.float32)
    linear = tl.zeros((block,), tl.float32)
    for start in range(0, width, block):
        x = _load(logits, start + columns, width, pad, bos)
        before, largest = largest, tl.maximum(largest, x)
        total = total * tl.exp(before - largest) + tl.exp(x - largest)
        linear += tl.where(x > -float("inf"), x, 0.0)
    most = tl.max(largest, 0)
    log_sum = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    target, possible = tl.load(targets + row), width - 2
    weight = tl.where(target == pad, 0.0, 1.0)
    tl.store(losses + 2 * row, weight * (log_sum - tl.load(logits + target).to(tl.float32)))
    tl.store(losses + 2 * row + 1, weight * (log_sum - tl.sum(linear, 0) / possible))
    for start in range(0, width, block):
        column = start + columns
        x = _load(logits, column, width, pad, bos)
        gradient = tl.exp(x - log_sum) - smoothing / possible - tl.where(column == target, 1.0 - smoothing, 0.0)
        gradient = tl.where(x > -float("inf"), weight * gradient, 0.0).to(logits.dtype.element_ty)
        tl.store(logits + column, gradient, mask=column < width)


def cross_entropy_(logits: Tensor, target: Tensor, smoothing: float, block: int = 4096, warps: int = 8) -> Tensor:
    """Compute two losses (N, 2) of each row, as `nmtkit.model.loss_kernel` does, and overwrite logits by the gradient.

    A row of logits (N, W) whose target is PAD has neither, so the number of rows can be fixed.
    """
    losses = torch.empty(len(logits), 2, device=logits.device)
    _rows[(len(logits),)](
        logits, target, losses, logits.stride(0), smoothing, logits.size(1), *NEVER_OUTPUT, block, num_warps=warps
    )
    return losses
