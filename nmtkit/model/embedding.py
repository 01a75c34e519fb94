"""Look-up of rows in a table: token embeddings (§3.4) and learned positions.

Gradients are bit-identical in each run, even on a GPU. By default, torch sums gradients of equal rows there in any
order: always in `index_select` and compiled code, and in `nn.Embedding` (since torch 2.11) if a table has few rows.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def look_up(ids: Tensor, table: Tensor, fixed: int | None = None) -> Tensor:
    """Look up rows (…, D) of a table (W, D) by ids (…); the row `fixed` gets no gradient. Not for compiled code."""
    if table.is_cuda and table.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _OrderedLookUp.apply(ids, table, fixed))  # type: ignore[no-untyped-call]
    return F.embedding(ids, table, fixed)


class Embedding(nn.Embedding):
    """An `nn.Embedding` whose gradient is summed in a fixed order. The row `padding_idx` gets no gradient."""

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the embeddings (…, D) of ids (…)."""
        return look_up(ids, self.weight, self.padding_idx)


class _OrderedLookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, fixed: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.fixed = table.size(0), -1 if fixed is None else fixed
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = ctx.saved_tensors
        rows = max(ctx.rows, ids.numel() // 8)  # torch adds atomically to fewer than a thirtieth as many rows as ids
        sums = torch.ops.aten.embedding_dense_backward(gradient, ids, rows, ctx.fixed, False)
        return None, sums[: ctx.rows], None
