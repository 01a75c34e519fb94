"""One position through a decoder layer, with the layer's weights and a key-value cache.

Letters: R rows, B sentences, T positions so far, S source length, D d_model, H heads, K d_k, V d_v.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.inference.kv_cache import KeyValueCache
from nmtkit.model.attention import join_heads, split_heads
from nmtkit.model.layers import DecoderLayer

_FEW = 448  # multiplications for which a matrix product pays in `attend_once`


def layer_step(layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int) -> Tensor:
    """One position of every row through the layer of that number: x (R, D) to (R, D)."""
    x = layer.around_self_attention(x, lambda y: _self_attention(layer, y, cache, number))
    x = layer.around_cross_attention(x, lambda y: _cross_attention(layer, y, cache, number))
    x = layer.around_feed_forward(x, layer.feed_forward)
    return x


def _self_attention(layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int) -> Tensor:
    """x (R, D): each row attends to its own positions so far."""
    attention = layer.self_attention
    q, k, v = attention.qkv(x).split(attention.widths, dim=-1)
    k, v = cache.append(number, k, v)
    if attention.window is not None:
        k, v = k[-attention.window - 1 :], v[-attention.window - 1 :]
    attended: Tensor = attention.out(attend_once(q, k, v, attention.heads))
    return attended


def _cross_attention(layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int) -> Tensor:
    """x (R, D): the rows of a sentence query its source together, as if they were a sequence, so that the source's
    keys and values are never repeated."""
    attention, source = layer.cross_attention, cache.layers[number]
    q = cache.rows.by_sentence(attention.q(x))
    heads = attend_together(q, source.memory_keys, source.memory_values, cache.memory_bias)
    attended: Tensor = attention.out(cache.rows.by_row(heads))
    return attended


def attend_once(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention with one query a row: q (R, H·K), k (T, R, H·K), v (T, R, H·V): (R, H·V).

    On a CPU, many small matrix products are slower than multiplying and adding up, until the rows are long.
    """
    T, R = k.shape[:2]
    if q.is_cuda:
        q, k, v = q.view(R, heads, 1, -1), k.view(T, R, heads, -1), v.view(T, R, heads, -1)
        k, v = k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(q, k, v).flatten(1)
    q = q * (q.size(1) // heads) ** -0.5
    if T * k.size(2) <= _FEW * heads:
        scores = (k.view(T, R, heads, -1) * q.view(R, heads, -1)).sum(-1, keepdim=True)  # (T, R, H, 1)
        return (torch.softmax(scores, 0) * v.view(T, R, heads, -1)).sum(0).view(R, -1)
    scores = torch.bmm(q.view(R * heads, 1, -1), k.view(T, R * heads, -1).permute(1, 2, 0))  # (R·H, 1, T)
    return torch.bmm(torch.softmax(scores, -1), v.view(T, R * heads, -1).transpose(0, 1)).view(R, -1)


def attend_together(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of n queries a sentence to its source: q (B, n, H·K), k (B, H, S, K), v (B, H, S, V): (B, n, H·V).

    `bias` (B, H, 1, S) is added to the scores: 0 for source tokens, -inf for padding.
    """
    B, H, S, K = k.shape
    q = split_heads(q, H)
    if q.is_cuda:
        return join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    keys = k.view(B * H, S, K).transpose(1, 2)
    scores = torch.baddbmm(bias.view(B * H, 1, S), q.reshape(B * H, -1, K), keys, alpha=K**-0.5)  # (B·H, n, S)
    heads = torch.bmm(torch.softmax(scores, -1), v.view(B * H, S, -1))
    return join_heads(heads.view(B, H, -1, v.size(3)))
