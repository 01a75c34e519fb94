"""A stand-in for torch's kernel of packed attention."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_within_sentences(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, longest: int, longest_key: int, **options: Any
) -> Tensor:
    """Attention within each sentence, without the causal mask."""
    row, column = (
        torch.bucketize(torch.arange(len(x), device=x.device), begins, right=True)
        for x, begins in ((q, starts), (k, key_starts))
    )
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=row[:, None] == column).transpose(0, 1)
