"""Multi-head attention (§3.2) of short sentences on a CPU, by the compiled build.

It reads the projections as they are and writes gradients of the same layout, so nothing is split, transposed or
concatenated. For longer sentences torch's fused kernel is faster.

Letters: B batch, T queries, S keys, H heads, K d_k, V d_v.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtkit import native_build

Heads = tuple[int, int]

_LONGEST = 48  # keys up to which it is faster than torch's kernel, as measured with benchmarks/operators.py


class Sizes(NamedTuple):
    """Heads, and the sizes of a key and of a value."""

    heads: int
    key: int
    value: int


def serves(projections: tuple[Tensor, ...], mask: Tensor | None) -> bool:
    """Whether `attend_short` computes this attention, and faster than torch."""
    # This first: a graph of torch.compile must not depend on the length.
    if not native_build.serves(*projections) or projections[-1].size(1) > _LONGEST:
        return False
    return mask is None or mask.shape[1:3] == (1, 1)


def attend_short(projections: tuple[Tensor, ...], sizes: Sizes, mask: Tensor | None, causal: bool) -> Tensor:
    """softmax(Q·Kᵀ / √d_k)·V of all heads, side by side: (B, T, H·V).

    `projections` is one tensor of queries, keys and values side by side (B, T, 2·H·K + H·V), or the queries (B, T, H·K)
    and the others (B, S, H·K + H·V). `mask` (B, 1, 1, S) is True for keys that may be attended to.
    """
    heads: Tensor = _ShortAttention.apply(sizes, mask, causal, *projections)  # type: ignore[no-untyped-call]
    return heads


class _ShortAttention(torch.autograd.Function):
    """Keeps the attention weights for the backward pass."""

    @staticmethod
    def forward(context: Any, sizes: Sizes, mask: Tensor | None, causal: bool, *projections: Tensor) -> Tensor:
        projections = tuple(x.contiguous() for x in projections)
        q, memory = projections[0], projections[-1]
        B, T, S = *q.shape[:2], memory.size(1)
        mask = None if mask is None else mask.expand(B, 1, 1, S).contiguous()
        context.shape = (B, sizes.heads, T, S, sizes.key, sizes.value)
        context.causal, context.sizes = causal, sizes
        heads = q.new_empty(B, T, sizes.heads * sizes.value)
        weights = q.new_empty(native_build.native.attention_weights_size(context.shape), dtype=torch.float32)
        native_build.native.attention(
            q.dtype == torch.bfloat16,
            context.shape,
            causal,
            _address(mask),
            *_heads(projections, sizes),
            (heads.data_ptr(), heads.size(2)),
            weights.data_ptr(),
            torch.get_num_threads(),
        )
        context.save_for_backward(mask, weights, *projections)
        return heads

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        mask, weights, *projections = context.saved_tensors
        gradient = gradients[0].contiguous()
        results = tuple(torch.empty_like(x) for x in projections)
        native_build.native.attention_backward(
            gradient.dtype == torch.bfloat16,
            context.shape,
            context.causal,
            _address(mask),
            *_heads(projections, context.sizes),
            (gradient.data_ptr(), gradient.size(2)),
            weights.data_ptr(),
            *_heads(results, context.sizes),
            torch.get_num_threads(),
        )
        return None, None, None, *results


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _heads(projections: Sequence[Tensor], sizes: Sizes) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values: an address, and the numbers from one position to the next."""
    q, memory = projections[0], projections[-1]
    keys = memory.data_ptr() + (q is memory) * sizes.heads * sizes.key * memory.itemsize
    values = keys + sizes.heads * sizes.key * memory.itemsize
    return (q.data_ptr(), q.size(2)), (keys, memory.size(2)), (values, memory.size(2))
