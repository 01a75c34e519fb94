"""Pads attention heads to the width D/H, for programs that support no other width.

Letters: D d_model, H heads, K d_k, V d_v.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.weights import as_arrays, as_tensors


def with_full_heads(checkpoint: Checkpoint, config: TransformerConfig) -> Checkpoint:
    """Convert a checkpoint to an equivalent model with d_k = d_v = D/H, by padding smaller heads with zeros.

    Attention divides by the square root of the width, so queries are scaled by √(D/H / d_k). `config` is the model's.
    Uses the trained weights, not their average. Raises UserError if D/H is not an integer, or is below d_k or d_v.
    """
    keys, values = config.key_size, config.value_size
    width, rest = divmod(config.d_model, config.heads)
    if rest or max(keys, values) > width:
        raise UserError(
            f"this format needs heads of width d_model / heads, at most {width} here: a model with heads of width "
            f"{keys} and {values} cannot be exported"
        )
    weights = checkpoint.weights
    if min(keys, values) < width:
        if config.positions == "rotary":
            raise UserError(
                f"this format needs heads of width {width} with --positions rotary, not {keys} and {values}"
            )
        tensors = as_tensors(weights)
        weights = as_arrays({name: _padded(name, weight, config, width) for name, weight in tensors.items()})
    return replace(checkpoint, model_config=replace(config, d_k=None, d_v=None), weights=weights)


def _padded(name: str, weight: Tensor, config: TransformerConfig, width: int) -> Tensor:
    """Pad the heads of an attention sub-layer's weight; return any other weight unchanged."""
    H, K, V = config.heads, config.key_size, config.value_size
    scale = (width / K) ** 0.5
    blocks = {"qkv": (K, K, V), "q": (K,), "kv": (K, V)}  # widths of the heads in the rows of a matrix
    *_, sublayer, module, part = ("", "", *name.split("."))
    if sublayer not in ("self_attention", "cross_attention") or module not in ("out", *blocks):
        return weight
    if module == "out":
        return _pad_heads(weight.t(), H, width).t().contiguous() if part == "weight" else weight
    rows = torch.split(weight, [H * size for size in blocks[module]])
    padded = [_pad_heads(block, H, width) for block in rows]
    if module != "kv":
        padded[0] = padded[0] * scale
    return torch.cat(padded)


def _pad_heads(block: Tensor, heads: int, width: int) -> Tensor:
    """Pad (H · size, …) to (H · width, …), with zeros at the end of each head."""
    split = block.reshape(heads, -1, *block.shape[1:])
    zeros = split.new_zeros(heads, width - split.size(1), *block.shape[1:])
    return torch.cat([split, zeros], dim=1).flatten(0, 1)
