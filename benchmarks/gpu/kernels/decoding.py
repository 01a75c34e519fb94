"""One step of a beam search whose shapes never change.

The cache is written once and never moved. A table tells which beam wrote each position of a hypothesis, so reordering
hypotheses moves the table alone.

Letters: R rows, which are sentences × B beams, T positions of the cache, H heads, D width of a head, W vocabulary.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202, N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu.kernels.attention import LOG2E
from nmtkit.text.vocabulary import NEVER_OUTPUT


@triton.jit
def _beam_attention(
    q, cache, writers, lengths, out, scale,
    B: tl.constexpr, H: tl.constexpr, D: tl.constexpr, T: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    row, head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    length = tl.load(lengths + row // B)
    column = row * H * D + head * D + d
    query = tl.load(q + column).to(tl.float32) * scale
    cache += (row // B).to(tl.int64) * (T * B * 2 * H * D) + head * D
    sums = tl.zeros((D,), tl.float32)
    total = 0.0
    largest = -1e30
    for start in range(0, length, N):
        t = start + tl.arange(0, N)
        real = t < length
        writer = tl.load(writers + row * T + t, mask=real, other=0).to(tl.int32)
        at = ((t * B + writer) * (2 * H * D))[:, None] + d[None, :]
        key = tl.load(cache + at, mask=real[:, None], other=0.0).to(tl.float32)
        value = tl.load(cache + at + H * D, mask=real[:, None], other=0.0).to(tl.float32)
        scores = tl.where(real, tl.sum(key * query[None, :], 1), -1e30)
        before, largest = largest, tl.maximum(largest, tl.max(scores, 0))
        weights = tl.exp2(scores - largest)
        shrink = tl.exp2(before - largest)
        total = total * shrink + tl.sum(weights, 0)
        sums = sums * shrink + tl.sum(weights[:, None] * value, 0)
    tl.store(out + column, (sums / total).to(out.dtype.element_ty))


def beam_attention(q: Tensor, cache: Tensor, writers: Tensor, lengths: Tensor, block: int = 16) -> Tensor:
    """Attend (R, H·D) to the hypothesis of each row.

    q is (R, H·D), `cache` (sentences, T, B, 2, H, D) with keys and values of one layer, `writers` (R, T) uint8 the beam
    that wrote each position, `lengths` (sentences,) int32.
    """
    _, positions, beams, _, heads, width = cache.shape
    out = torch.empty_like(q)
    scale = width**-0.5 * LOG2E
    _beam_attention[(len(q), heads)](
        q, cache, writers, lengths, out, scale, beams, heads, width, positions, block, num_warps=1
    )
    return out


@triton.jit
def _source_attention(
    q, memory, begins, ends, out, scale, B: tl.constexpr, H: tl.constexpr, D: tl.constexpr, N: tl.constexpr
):
    sentence, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    columns = (sentence * B + tl.arange(0, B))[:, None] * (H * D) + head * D + d[None, :]
    begin, end = tl.load(begins + sentence), tl.load(ends + sentence)
    query = tl.load(q + columns).to(tl.float32) * scale
    sums = tl.zeros((B, D), tl.float32)
    total = tl.zeros((B,), tl.float32)
    largest = tl.full((B,), -1e30, tl.float32)
    for start in range(begin, end, N):
        n = start + tl.arange(0, N)
        real = n < end
        at = n.to(tl.int64)[:, None] * (2 * H * D) + head * D + d[None, :]
        key = tl.load(memory + at, mask=real[:, None], other=0.0).to(tl.float32)
        value = tl.load(memory + at + H * D, mask=real[:, None], other=0.0).to(tl.float32)
        scores = tl.where(real[None, :], tl.sum(query[:, None, :] * key[None, :, :], 2), -1e30)
        before, largest = largest, tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - largest[:, None])
        shrink = tl.exp2(before - largest)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.sum(weights[:, :, None] * value[None, :, :], 1)
    tl.store(out + columns, (sums / total[:, None]).to(out.dtype.element_ty))


def source_attention(
    q: Tensor, memory: Tensor, begins: Tensor, ends: Tensor, heads: int, block: int = 16, warps: int = 2
) -> Tensor:
    """Attend (R, H·D) to the source of each sentence, whose keys and values are read once for all its beams.

    q is (R, H·D), `memory` (S, 2·H·D) has the keys and values of packed sources, which begin and end at (sentences,).
    """
    out, width = torch.empty_like(q), q.size(1) // heads
    beams, scale = len(q) // len(begins), width**-0.5 * LOG2E
    _source_attention[(len(begins), heads)](
        q, memory, begins, ends, out, scale, beams, heads, width, block, num_warps=warps
    )
    return out


@triton.jit
def _candidates(
    logits, values, columns, log_sums, stride,
    width: tl.constexpr, pad: tl.constexpr, bos: tl.constexpr, kept: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    c, slots = tl.arange(0, block), tl.arange(0, kept)
    best = tl.full((kept,), -1e30, tl.float32)
    where = tl.zeros((kept,), tl.int32)
    least = -1e30
    largest = -1e30
    total = 0.0
    for start in range(0, width, block):
        column = start + c
        x = tl.load(logits + row * stride + column, mask=column < width, other=-1e30).to(tl.float32)
        x = tl.where((column != pad) & (column != bos), x, -1e30)
        high = tl.max(x, 0)
        before, largest = largest, tl.maximum(largest, high)
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(x - largest), 0)
        while high > least:
            found, worst = tl.argmax(x, 0), tl.argmin(best, 0)
            best = tl.where(slots == worst, high, best)
            where = tl.where(slots == worst, start + found, where)
            least = tl.min(best, 0)
            x = tl.where(c == found, -1e30, x)
            high = tl.max(x, 0)
    tl.store(values + row * kept + slots, best)
    tl.store(columns + row * kept + slots, where)
    tl.store(log_sums + row, largest + tl.log(total))


def candidates(logits: Tensor, kept: int, block: int = 4096, warps: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Find the highest logits (R, kept), unordered, their columns, and the log-sum-exp (R,), in one read of (R, W).

    The ids of `NEVER_OUTPUT` do not count. Of equal logits, the one in the lower column is found.
    """
    rows, width = logits.shape
    values = torch.empty(rows, kept, device=logits.device)
    columns, log_sums = torch.empty_like(values, dtype=torch.int32), values.new_empty(rows)
    _candidates[(rows,)](
        logits, values, columns, log_sums, logits.stride(0), width, *NEVER_OUTPUT, kept, block, num_warps=warps
    )
    return values, columns, log_sums
