"""LayerNorm(x + Dropout(y)) in one kernel each way.

A mask depends on seed, row and column alone: not on the card, nor on how rows are shared out among programs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_EPS = 1e-5


class Dropout(NamedTuple):
    """A rate, and the seed (1,) int32 in the device's memory, so that a CUDA graph can be replayed with others."""

    rate: float
    seed: Tensor
    call: int  # added to the seed: one for each use in a model

    @property
    def arguments(self) -> tuple[Tensor, int, int, float]:
        """Seed, call, the least signed word whose element is kept, and the factor of kept elements."""
        return self.seed, self.call, round(self.rate * 2**32) - 2**31, 1 / (1 - self.rate)


class Normed(NamedTuple):
    """The result of `add_norm`, and what its gradient needs."""

    out: Tensor  # (N, D)
    sums: Tensor  # (N, D) x + Dropout(y)
    mean: Tensor  # (N,)
    inverse_deviation: Tensor  # (N,)


@triton.jit
def _kept(word, threshold):
    return word.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def _add(x, y, at, word, real, threshold, scale):
    dropped = tl.where(_kept(word, threshold), tl.load(y + at, mask=real, other=0.0).to(tl.float32) * scale, 0.0)
    return tl.load(x + at, mask=real, other=0.0).to(tl.float32) + dropped


@triton.jit
def _finish(sums, out, gain, bias, at, columns, x, mean, factor, real):
    """Store a quarter of the sums, and the same normalized."""
    normed = (x - mean[:, None]) * factor[:, None] * tl.load(gain + columns)[None, :] + tl.load(bias + columns)[None, :]
    tl.store(sums + at, x.to(sums.dtype.element_ty), mask=real)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=real)


@triton.jit
def _squares(x, mean):
    return tl.sum((x - mean[:, None]) * (x - mean[:, None]), 1)


@triton.jit
def _forward(
    x, y, sums, out, means, factors, gain, bias, rows, seed, call, threshold, scale, eps,
    D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Process B rows. A row is in four quarters, because a draw of Philox has four words."""
    Q: tl.constexpr = D // 4
    r, c = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, Q)
    at, real = r[:, None] * D + c[None, :], (r < rows)[:, None]
    w0, w1, w2, w3 = tl.randint4x(tl.load(seed) + call, r[:, None] * Q + c[None, :])
    x0 = _add(x, y, at, w0, real, threshold, scale)
    x1 = _add(x, y, at + Q, w1, real, threshold, scale)
    x2 = _add(x, y, at + 2 * Q, w2, real, threshold, scale)
    x3 = _add(x, y, at + 3 * Q, w3, real, threshold, scale)
    mean = (tl.sum(x0, 1) + tl.sum(x1, 1) + tl.sum(x2, 1) + tl.sum(x3, 1)) / D
    variance = (_squares(x0, mean) + _squares(x1, mean) + _squares(x2, mean) + _squares(x3, mean)) / D
    factor = 1.0 / tl.sqrt(variance + eps)
    tl.store(means + r, mean, mask=r < rows)
    tl.store(factors + r, factor, mask=r < rows)
    _finish(sums, out, gain, bias, at, c, x0, mean, factor, real)
    _finish(sums, out, gain, bias, at + Q, c + Q, x1, mean, factor, real)
    _finish(sums, out, gain, bias, at + 2 * Q, c + 2 * Q, x2, mean, factor, real)
    _finish(sums, out, gain, bias, at + 3 * Q, c + 3 * Q, x3, mean, factor, real)


@triton.jit
def _backward(
    first, second, sums, d_x, d_y, means, factors, gain, parts, rows, seed, call, threshold, scale,
    D: tl.constexpr, programs: tl.constexpr,
):  # fmt: skip
    program, c = tl.program_id(0), tl.arange(0, D)
    gains = tl.load(gain + c)
    d_gain = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    y_sums = tl.zeros((D,), tl.float32)
    Q: tl.constexpr = D // 4
    for r in range(program, rows, programs):
        at, factor = r * D + c, tl.load(factors + r)
        gradient = tl.load(first + at).to(tl.float32) + tl.load(second + at).to(tl.float32)
        normed = (tl.load(sums + at).to(tl.float32) - tl.load(means + r)) * factor
        d_gain += gradient * normed
        d_bias += gradient
        scaled = gradient * gains
        d_sum = (scaled - tl.sum(scaled, 0) / D - normed * (tl.sum(scaled * normed, 0) / D)) * factor
        w0, w1, w2, w3 = tl.randint4x(tl.load(seed) + call, r * Q + c % Q)
        word = tl.where(c < 2 * Q, tl.where(c < Q, w0, w1), tl.where(c < 3 * Q, w2, w3))
        dropped = tl.where(_kept(word, threshold), d_sum * scale, 0.0).to(d_y.dtype.element_ty)
        y_sums += dropped.to(tl.float32)
        tl.store(d_x + at, d_sum.to(d_x.dtype.element_ty))
        tl.store(d_y + at, dropped)
    tl.store(parts + program * 3 * D + c, d_gain)
    tl.store(parts + program * 3 * D + D + c, d_bias)
    tl.store(parts + program * 3 * D + 2 * D + c, y_sums)


def add_norm(
    x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, dropout: Dropout, block: int = 4, warps: int = 2
) -> Normed:
    """Compute LayerNorm(x + Dropout(y)) for x and y (N, D), D a power of 2, `block` rows a program."""
    found = Normed(torch.empty_like(x), torch.empty_like(x), *gain.new_empty(2, len(x)))
    _forward[(triton.cdiv(len(x), block),)](
        *(x, y, found.sums, found.out, found.mean, found.inverse_deviation, gain, bias, len(x)),
        *(*dropout.arguments, _EPS, x.size(1), block),
        num_warps=warps,
    )
    return found


def add_norm_backward(
    first: Tensor, second: Tensor, normed: Normed, gain: Tensor, dropout: Dropout, programs: int, warps: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x and y (N, D), given those of two uses of the output, and three column sums (3, D).

    The sums are the gradients of gain and bias, and the sum of y's, which is the gradient of a bias in y.
    """
    d_x, d_y = torch.empty_like(first), torch.empty_like(first)
    parts = gain.new_empty(programs, 3, len(gain))
    _backward[(programs,)](
        *(first, second, normed.sums, d_x, d_y, normed.mean, normed.inverse_deviation, gain, parts, len(first)),
        *(*dropout.arguments, len(gain), programs),
        num_warps=warps,
    )
    return d_x, d_y, parts.sum(0)
