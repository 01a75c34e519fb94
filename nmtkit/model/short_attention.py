"""Multi-head attention (§3.2) of short sentences on a CPU, padded or packed, in compiled code.

It reads projections and writes gradients in the same layout, so nothing is split, transposed or concatenated. For
longer sentences torch's fused kernel is faster.

Letters: B batch, T queries, S keys, H heads, K d_k, V d_v.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmtkit.machine import native_build
from nmtkit.model import native_operators

Heads = tuple[int, int]

MAX_KEYS = 48  #: for which it is faster than torch's kernel, by benchmarks/operators.py


class Sizes(NamedTuple):
    """The number of heads, and the widths of a key and a value."""

    heads: int
    key: int
    value: int


def serves(projections: tuple[Tensor, ...], mask: Tensor | None) -> bool:
    """Whether `attend_short` supports these projections (B, T, …) and mask (B, 1, 1, S), and is faster than torch."""
    # Checked first: a torch.compile graph must not depend on the length.
    if not native_operators.serves(*projections) or projections[-1].size(1) > MAX_KEYS:
        return False
    return mask is None or mask.shape[1:3] == (1, 1)


def attend_short(
    projections: tuple[Tensor, ...],
    sizes: Sizes,
    causal: bool,
    mask: Tensor | None = None,
    starts: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute softmax(Q·Kᵀ / √d_k)·V of all heads, side by side (B, T, H·V).

    `projections` is one tensor of queries, keys and values side by side (B, T, 2·H·K + H·V), or queries (B, T, H·K),
    then keys and values (B, S, H·K + H·V). `mask` (B, 1, 1, S) is True for visible keys; `causal` hides later keys.

    Packed sentences have no B, but `starts` of queries and keys, both (N + 1,) in int32: the beginning of each sentence
    and the end of the last. After it, the result is 0.
    """
    if starts is None:
        B, T, S = *projections[0].shape[:2], projections[-1].size(1)
        starts = _every(T, B), _every(S, B)
        mask = None if mask is None else mask.expand(B, 1, 1, S).contiguous()
    heads: Tensor = _ShortAttention.apply(sizes, starts, mask, causal, *projections)  # type: ignore[no-untyped-call]
    return heads


def _every(length: int, sentences: int) -> Tensor:
    """Return the starts of sentences of equal length and the end of the last (B + 1,)."""
    return torch.arange(0, sentences * length + 1, length, dtype=torch.int32)


class _ShortAttention(torch.autograd.Function):
    """Computes the attention, and saves its weights for the backward pass."""

    @staticmethod
    def forward(
        context: Any,
        sizes: Sizes,
        starts: tuple[Tensor, Tensor],
        mask: Tensor | None,
        causal: bool,
        *projections: Tensor,
    ) -> Tensor:
        projections = tuple(x.contiguous() for x in projections)
        q = projections[0]
        context.causal, context.sizes, context.starts = causal, sizes, starts
        shape = _shape(sizes, starts)
        heads = q.new_empty(*q.shape[:-1], sizes.heads * sizes.value)
        weights = q.new_empty(native_build.native.attention_weights_size(shape), dtype=torch.float32)
        inputs = shape, causal, mask, *_heads(projections, sizes)
        native_operators.run("attention", q, *inputs, (heads.data_ptr(), heads.size(-1)), weights)
        _clear_after(heads, starts[0])
        context.save_for_backward(mask, weights, *projections)
        return heads

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        mask, weights, *projections = context.saved_tensors
        gradient = gradients[0].contiguous()
        results = tuple(torch.empty_like(x) for x in projections)
        inputs = _shape(context.sizes, context.starts), context.causal, mask, *_heads(projections, context.sizes)
        gradients_of_heads = gradient.data_ptr(), gradient.size(-1)
        outputs = _heads(results, context.sizes)
        native_operators.run("attention_backward", gradient, *inputs, gradients_of_heads, weights, *outputs)
        for result, starts in zip((results[0], results[-1]), context.starts, strict=True):
            _clear_after(result, starts)
        return None, None, None, None, *results


def _clear_after(x: Tensor, starts: Tensor) -> None:
    """Set everything after the last sentence of x (…, D) to 0, in place."""
    x.view(-1, x.size(-1))[int(starts[-1]) :] = 0


def _shape(sizes: Sizes, starts: tuple[Tensor, Tensor]) -> tuple[int, int, int, int, int, int]:
    return len(starts[0]) - 1, sizes.heads, sizes.key, sizes.value, starts[0].data_ptr(), starts[1].data_ptr()


def _heads(projections: Sequence[Tensor], sizes: Sizes) -> tuple[Heads, Heads, Heads]:
    """Return the address of queries, keys and values, each with the stride from one position to the next."""
    q, memory = projections[0], projections[-1]
    keys = memory.data_ptr() + (q is memory) * sizes.heads * sizes.key * memory.itemsize
    values = keys + sizes.heads * sizes.key * memory.itemsize
    width = memory.size(-1)
    return (q.data_ptr(), q.size(-1)), (keys, width), (values, width)
