"""The cross-entropy of rows of logits and its gradient in one GPU kernel, written in Triton.

torch copies the logits to fp32 and passes over them five more times. The kernel reads each row twice and writes it
once, in its own dtype; all sums are in fp32. Import this module only if Triton is installed.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nmtkit.text.vocabulary import EOS, NEVER_OUTPUT

_BLOCK = 4096  # columns that a program keeps in registers
_WARPS = 8


def _cross_entropy_rows(
    logits: "Any",
    targets: "Any",
    losses: "Any",
    stride: "Any",
    smoothing: "Any",
    width: tl.constexpr,
    pad: tl.constexpr,
    bos: tl.constexpr,
    learning: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Process one row: compute the maximum and sum of exponentials online, then overwrite the logits with the gradient.

    Scores are relative to the row's maximum, in base e; columns `pad` and `bos` count as -inf.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    columns = tl.arange(0, block)
    largest = tl.full((block,), -float("inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    linear = tl.zeros((block,), tl.float32)
    for start in range(0, width, block):
        column = start + columns
        real = (column < width) & (column != pad) & (column != bos)
        x = tl.load(logits + column, mask=real, other=-float("inf")).to(tl.float32)
        before, largest = largest, tl.maximum(largest, x)
        finite = largest > -float("inf")
        shift = tl.where(finite, largest, 0.0)
        total = total * tl.exp(tl.where(finite, before - shift, 0.0)) + tl.exp(x - shift)
        linear += tl.where(real, x, 0.0)
    most = tl.max(largest, 0)
    log_sum = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    target = tl.load(targets + row)
    possible = width - 2
    tl.store(losses + 2 * row, log_sum - tl.load(logits + target).to(tl.float32))
    tl.store(losses + 2 * row + 1, log_sum - tl.sum(linear, 0) / possible)
    if learning:
        for start in range(0, width, block):
            column = start + columns
            real = (column < width) & (column != pad) & (column != bos)
            x = tl.load(logits + column, mask=real, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - log_sum) - smoothing / possible - tl.where(column == target, 1.0 - smoothing, 0.0)
            gradient = tl.where(real, gradient, 0.0).to(logits.dtype.element_ty)
            tl.store(logits + column, gradient, mask=column < width)


_kernel = triton.jit(_cross_entropy_rows)


def cross_entropy_(logits: Tensor, target: Tensor, smoothing: float, learning: bool) -> Tensor:
    """Return two sums over all rows, (2,) in fp32: of -log p(target), and of the mean -log p of ids that may be output.

    Each row of logits (N, W), in fp32 or bf16, must be contiguous; target (N,) contains ids that may be output. If
    `learning`, the gradient of the smoothed loss overwrites the logits, with 0 for `NEVER_OUTPUT`.
    """
    return _losses_of_rows(logits, target, smoothing, learning).sum(0)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Compute the log-sum-exp (N, 1) in fp32 of contiguous logits (N, W), without the ids of `NEVER_OUTPUT`."""
    target = torch.full((len(logits),), EOS, device=logits.device)
    losses = _losses_of_rows(logits, target, 0.0, learning=False)
    return (losses[:, 0] + logits[:, EOS]).unsqueeze(1)


def _losses_of_rows(logits: Tensor, target: Tensor, smoothing: float, learning: bool) -> Tensor:
    """Compute the two losses (N, 2) of `cross_entropy_` for each row, in fp32."""
    losses = torch.empty(len(logits), 2, dtype=torch.float32, device=logits.device)
    pad, bos = NEVER_OUTPUT
    _kernel[(len(logits),)](
        logits,
        target,
        losses,
        logits.stride(0),
        smoothing,
        width=logits.size(1),
        pad=pad,
        bos=bos,
        learning=learning,
        block=min(_BLOCK, triton.next_power_of_2(logits.size(1))),
        num_warps=_WARPS,
    )
    return losses
