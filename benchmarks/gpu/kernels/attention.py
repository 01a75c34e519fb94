"""Attention in which each query attends to an interval of the keys.

Causal masks, windows, packed sentences and the filler (an empty interval) are intervals. The kernels therefore know
nothing of sentences, and their shapes depend on the numbers of tokens only: one CUDA graph serves all such updates.
Sums have a fixed order, so gradients are bit-identical in each run.

Letters: T queries, S keys, H heads, D width of a head; a tile has M queries and N keys.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

LOG2E = 1.4426950408889634
_KEY_TILE = (64, 64, 4)


class Intervals(NamedTuple):
    """The keys of each query, and the queries of each key; int32 indices, the ends exclusive."""

    key_begins: Tensor  # (T,)
    key_ends: Tensor
    query_begins: Tensor  # (S,)
    query_ends: Tensor


def sentence_intervals(
    query_lengths: NDArray[np.int32],
    key_lengths: NDArray[np.int32],
    sizes: tuple[int, int],
    causal: bool,
    device: torch.device,
) -> Intervals:
    """The intervals of packed sentences with these lengths; filler up to `sizes` (T, S) attends to nothing."""

    def filled(indices: NDArray[np.integer[Any]], size: int) -> Tensor:
        return torch.from_numpy(np.pad(indices, (0, size - len(indices))).astype(np.int32)).to(device)

    key_ends, query_ends = key_lengths.cumsum(), query_lengths.cumsum()
    queries, keys = query_lengths.sum(), key_lengths.sum()
    of_query, of_key = (np.repeat(np.arange(len(lengths)), lengths) for lengths in (query_lengths, key_lengths))
    return Intervals(
        filled((key_ends - key_lengths)[of_query], sizes[0]),
        filled(np.arange(queries) + 1 if causal else key_ends[of_query], sizes[0]),
        filled(np.arange(keys) if causal else (query_ends - query_lengths)[of_key], sizes[1]),
        filled(query_ends[of_key], sizes[1]),
    )


@triton.jit
def _load(x, rows, stride, head, real, D: tl.constexpr):
    """Load the columns of a head (rows, D); zeros where a row is not `real`."""
    return tl.load(x + rows[:, None] * stride + head * D + tl.arange(0, D)[None, :], mask=real[:, None], other=0.0)


@triton.jit
def _store(x, rows, stride, head, real, values, D: tl.constexpr):
    at = x + rows[:, None] * stride + head * D + tl.arange(0, D)[None, :]
    tl.store(at, values.to(x.dtype.element_ty), mask=real[:, None])


@triton.jit
def _interval(begins, ends, rows, real):
    """Load the intervals of the rows of a tile. Returns them, and the interval that includes all of them."""
    begin = tl.load(begins + rows, mask=real, other=0)
    end = tl.load(ends + rows, mask=real, other=0)
    some = end > begin
    return begin, end, tl.min(tl.where(some, begin, 2147483647), 0), tl.max(tl.where(some, end, 0), 0)


@triton.jit
def _forward(
    q, k, v, out, log_sums, key_begins, key_ends, queries, q_stride, k_stride, v_stride, out_stride, scale,
    H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    m, head = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1)
    real = m < queries
    begin, end, low, high = _interval(key_begins, key_ends, m, real)
    query = _load(q, m, q_stride, head, real, D)
    sums = tl.zeros((M, D), tl.float32)
    total = tl.zeros((M,), tl.float32)
    largest = tl.full((M,), -1e20, tl.float32)  # more than masked scores, whose weights are 0 then
    for start in range(low, high, N):
        n = start + tl.arange(0, N)
        scores = tl.dot(query, tl.trans(_load(k, n, k_stride, head, n < high, D))) * scale
        scores = tl.where((n[None, :] >= begin[:, None]) & (n[None, :] < end[:, None]), scores, -1e30)
        before, largest = largest, tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - largest[:, None])
        shrink = tl.exp2(before - largest)
        total = total * shrink + tl.sum(weights, 1)
        value = _load(v, n, v_stride, head, n < high, D)
        sums = sums * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
    some = total > 0
    total = tl.where(some, total, 1.0)
    _store(out, m, out_stride, head, real, sums / total[:, None], D)
    tl.store(log_sums + m * H + head, tl.where(some, largest + tl.log2(total), 0.0), mask=real)


@triton.jit
def _backward_queries(
    q, k, v, out, d_out, d_q, log_sums, deltas, key_begins, key_ends, queries,
    q_stride, k_stride, v_stride, out_stride, d_q_stride, scale, log2_scale,
    H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    m, head = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1)
    real = m < queries
    begin, end, low, high = _interval(key_begins, key_ends, m, real)
    query = _load(q, m, q_stride, head, real, D)
    gradient = _load(d_out, m, out_stride, head, real, D)
    delta = tl.sum(gradient.to(tl.float32) * _load(out, m, out_stride, head, real, D).to(tl.float32), 1)
    tl.store(deltas + m * H + head, delta, mask=real)
    log_sum = tl.load(log_sums + m * H + head, mask=real, other=0.0)
    sums = tl.zeros((M, D), tl.float32)
    for start in range(low, high, N):
        n = start + tl.arange(0, N)
        key = _load(k, n, k_stride, head, n < high, D)
        scores = tl.dot(query, tl.trans(key)) * log2_scale
        scores = tl.where((n[None, :] >= begin[:, None]) & (n[None, :] < end[:, None]), scores, -1e30)
        weights = tl.exp2(scores - log_sum[:, None])
        value = _load(v, n, v_stride, head, n < high, D)
        d_scores = weights * (tl.dot(gradient, tl.trans(value)) - delta[:, None])
        sums += tl.dot(d_scores.to(key.dtype), key)
    _store(d_q, m, d_q_stride, head, real, sums * scale, D)


@triton.jit
def _backward_keys(
    q, k, v, d_out, d_k, d_v, log_sums, deltas, key_begins, key_ends, query_begins, query_ends, keys,
    q_stride, k_stride, v_stride, out_stride, d_k_stride, d_v_stride, scale, log2_scale,
    H: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    n, head = tl.program_id(0) * N + tl.arange(0, N), tl.program_id(1)
    real = n < keys
    _, _, low, high = _interval(query_begins, query_ends, n, real)
    key, value = _load(k, n, k_stride, head, real, D), _load(v, n, v_stride, head, real, D)
    key_sums = tl.zeros((N, D), tl.float32)
    value_sums = tl.zeros((N, D), tl.float32)
    for start in range(low, high, M):
        m = start + tl.arange(0, M)
        inside = m < high
        query, gradient = _load(q, m, q_stride, head, inside, D), _load(d_out, m, out_stride, head, inside, D)
        log_sum = tl.load(log_sums + m * H + head, mask=inside, other=0.0)
        delta = tl.load(deltas + m * H + head, mask=inside, other=0.0)
        begin = tl.load(key_begins + m, mask=inside, other=0)
        end = tl.load(key_ends + m, mask=inside, other=0)
        scores = tl.dot(key, tl.trans(query)) * log2_scale  # (N, M)
        scores = tl.where((n[:, None] >= begin[None, :]) & (n[:, None] < end[None, :]), scores, -1e30)
        weights = tl.exp2(scores - log_sum[None, :])
        value_sums += tl.dot(weights.to(gradient.dtype), gradient)
        d_scores = weights * (tl.dot(value, tl.trans(gradient)) - delta[None, :])
        key_sums += tl.dot(d_scores.to(query.dtype), query)
    _store(d_k, n, d_k_stride, head, real, key_sums * scale, D)
    _store(d_v, n, d_v_stride, head, real, value_sums, D)


class IntervalAttention(torch.autograd.Function):
    """Self-attention within one projection, or attention to the columns of a different projection.

    Gradients have the layout of the projections, so nothing is concatenated.
    """

    @staticmethod
    def forward(
        ctx: Any, own: Tensor, memory: Tensor | None, intervals: Intervals, heads: int, tile: tuple[int, int, int]
    ) -> Tensor:
        """Attend (T, H·D). `own` is (T, 3·H·D), or with a `memory` (S, 2·H·D) of keys and values, (T, H·D).

        `tile` has the queries and keys of a tile, and its number of warps.
        """
        q, k, v = _parts(own, memory)
        width = q.size(1)
        out, log_sums = own.new_empty(len(q), width), own.new_empty(len(q), heads, dtype=torch.float32)
        m, n, warps = tile
        strides = q.stride(0), k.stride(0), v.stride(0), out.stride(0)
        scale = (width // heads) ** -0.5 * LOG2E
        _forward[(triton.cdiv(len(q), m), heads)](
            *(q, k, v, out, log_sums, *intervals[:2], len(q), *strides, scale, heads, width // heads, m, n),
            num_warps=warps,
            num_stages=2,
        )
        ctx.save_for_backward(own, memory, out, log_sums, *intervals)
        ctx.heads, ctx.tile = heads, tile
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Compute the gradients of `own` and `memory`."""
        own, memory, out, log_sums, *intervals = ctx.saved_tensors
        gradient, heads = gradients[0].contiguous(), ctx.heads
        d_own, d_memory = torch.empty_like(own), None if memory is None else torch.empty_like(memory)
        (q, k, v), (d_q, d_k, d_v) = _parts(own, memory), _parts(d_own, d_memory)
        deltas, width = torch.empty_like(log_sums), out.size(1) // heads
        scales = width**-0.5, width**-0.5 * LOG2E
        strides = q.stride(0), k.stride(0), v.stride(0), out.stride(0)
        m, n, warps = ctx.tile
        _backward_queries[(triton.cdiv(len(q), m), heads)](
            *(q, k, v, out, gradient, d_q, log_sums, deltas, *intervals[:2], len(q), *strides, d_q.stride(0)),
            *(*scales, heads, width, m, n),
            num_warps=warps,
            num_stages=2,
        )
        m, n, warps = _KEY_TILE
        _backward_keys[(triton.cdiv(len(k), n), heads)](
            *(q, k, v, gradient, d_k, d_v, log_sums, deltas, *intervals, len(k), *strides, d_k.stride(0)),
            *(d_v.stride(0), *scales, heads, width, m, n),
            num_warps=warps,
            num_stages=2,
        )
        return d_own, d_memory, None, None, None


def _parts(own: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    """The columns of queries, keys and values."""
    return own.chunk(3, 1) if memory is None else (own, *memory.chunk(2, 1))
