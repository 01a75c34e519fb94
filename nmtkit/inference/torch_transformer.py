"""Inference of the Transformer with torch, on any device. It is the reference for the other backends.

Letters: R rows, B sentences, T positions so far, S source length, D d_model, H heads, K d_k, V d_v.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.inference.kv_cache import KeyValueCache, LayerCache
from nmtkit.inference.protocol import AttentionWeights
from nmtkit.inference.torch_inference import TorchInference
from nmtkit.inference.transformer_sizes import TransformerSizes
from nmtkit.model.attention import join_heads, split_heads
from nmtkit.model.layers import DecoderLayer
from nmtkit.model.ssru import Ssru
from nmtkit.model.transformer import Memory, Transformer

_ENCODED = 512  # tokens that a CPU encodes together; more are not faster
_FEW = 448  # multiplications for which a matrix product pays in `attend_once`


class TorchTransformer(TransformerSizes, TorchInference):
    """Searches with a Transformer, using a key-value cache."""

    model: Transformer

    def __init__(self, model: Transformer) -> None:
        TorchInference.__init__(self, model)
        TransformerSizes.__init__(self, model.config, model.output_matrix.element_size())

    def encode(self, src: Tensor, lengths: Tensor) -> Memory:
        """Encode src (B, S) with lengths (B,). A CPU encodes a few sentences at a time, with hardly any padding if they
        are sorted by length."""
        if src.device.type != "cpu":
            return self.model.encode(src, lengths)
        mask = torch.zeros(src.shape, dtype=torch.bool)
        values = torch.zeros(*src.shape, self.config.d_model, dtype=self.model.output_matrix.dtype)
        for rows, longest in _parts(lengths.tolist()):
            encoded = self.model.encode(src[rows, :longest], lengths[rows])
            values[rows, :longest], mask[rows, :longest] = encoded.values, encoded.mask
        return Memory(values, mask)

    def start(self, memory: Memory) -> KeyValueCache:
        """Return the state of B rows, with keys and values of the source, and no positions yet."""
        layers = []
        for layer in cast(list[DecoderLayer], self.model.decoder):
            k, v = layer.cross_attention.keys_and_values(memory.values)
            attention, widths, state = layer.self_attention, (0, 0), None
            if isinstance(attention, Ssru):
                state = torch.zeros_like(memory.values[:, 0])
            else:
                widths = attention.widths[1:]
            keys, values = (k.new_empty(0, memory.values.size(0), width) for width in widths)
            layers.append(LayerCache(k.contiguous(), v.contiguous(), keys, values, state))
        bias = memory.values.new_zeros(memory.mask.shape).masked_fill_(~memory.mask, -torch.inf)
        bias = bias[:, None, None, :].repeat(1, self.config.heads, 1, 1)
        return KeyValueCache(layers, bias, self.model.target_positions)

    def logits(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        model = self.model
        positions = state.positions(state.length, 1)
        x = model.inputs(model.target_embedding(tokens), positions, model.target_norm)
        for number, layer in enumerate(cast(list[DecoderLayer], model.decoder)):
            x = layer_step(layer, x, state, number, model.rotation(positions))
        state.length += 1
        return model.project(model.decoder_norm(x))

    def attention(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> AttentionWeights:
        weights = AttentionWeights()
        memory = self.model.encode(src, lengths, weights.encoder)
        self.model.decode(tgt_in, memory, weights.decoder, weights.cross)
        return weights

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int) -> Tensor:
        layers: list[Tensor] = []
        self.model.decode(tgt_in, self.encode(src, lengths), record_cross=layers)
        return layers[layer].float().mean(1)


def _parts(lengths: list[int]) -> Iterator[tuple[slice, int]]:
    """Yield slices of consecutive sentences with about `_ENCODED` tokens, and the longest length in each."""
    start = 0
    while start < len(lengths):
        end, longest = start, 0
        while end < len(lengths) and (end == start or max(longest, lengths[end]) * (end + 1 - start) <= _ENCODED):
            longest = max(longest, lengths[end])
            end += 1
        yield slice(start, end), longest
        start = end


def layer_step(
    layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int, rotation: Tensor | None = None
) -> Tensor:
    """Run one position x (R, D) of every row through the layer with this index, and return (R, D).

    `rotation` (1, K) encodes the position, if positions are rotary.
    """
    x = layer.around_self_attention(x, lambda y: _self_attention(layer, y, cache, number, rotation))
    x = layer.around_cross_attention(x, lambda y: _cross_attention(layer, y, cache, number))
    x = layer.around_feed_forward(x, layer.feed_forward)
    return x


def _self_attention(
    layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int, rotation: Tensor | None
) -> Tensor:
    """Let each row of x (R, D) attend to its own positions so far, or advance its SSRU, and return (R, D)."""
    attention, own = layer.self_attention, cache.layers[number]
    if isinstance(attention, Ssru):
        y, own.state = attention.step(x, cast(Tensor, own.state))
        return y
    q, k, v = torch.split(attention.project(x, rotation), list(attention.widths), dim=-1)
    k, v = cache.append(number, k, v)
    if attention.window is not None:
        k, v = k[-attention.window - 1 :], v[-attention.window - 1 :]
    attended: Tensor = attention.out(attend_once(q, k, v, attention.heads))
    return attended


def _cross_attention(layer: DecoderLayer, x: Tensor, cache: KeyValueCache, number: int) -> Tensor:
    """Let the rows of x (R, D) attend to their sources, and return (R, D). The rows of a sentence query its source
    together, as if they were a sequence, so that the source's keys and values are never repeated."""
    attention, source = layer.cross_attention, cache.layers[number]
    q = cache.rows.by_sentence(attention.queries(x))
    heads = attend_together(q, source.memory_keys, source.memory_values, cache.memory_bias)
    attended: Tensor = attention.out(cache.rows.by_row(heads))
    return attended


def attend_once(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Compute attention (R, H·V) with one query per row: q (R, H·K), k (T, R, H·K), v (T, R, H·V).

    On a CPU, many small matrix products are slower than elementwise products and sums, unless the rows are long.
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
    """Compute attention (B, n, H·V) of n queries per sentence: q (B, n, H·K), k (B, H, S, K), v (B, H, S, V).

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
