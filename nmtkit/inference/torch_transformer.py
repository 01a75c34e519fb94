"""The plain Transformer as an inference model: on any device, and the reference for the other backends."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from nmtkit.inference.decoder_step import layer_step
from nmtkit.inference.kv_cache import KeyValueCache, LayerCache
from nmtkit.inference.protocol import AttentionWeights, shift_right
from nmtkit.inference.transformer import TransformerInference
from nmtkit.model.layers import DecoderLayer
from nmtkit.model.transformer import Memory, Transformer

_ENCODED = 512  # tokens that a CPU encodes together: it gains nothing from more
_SCORED = 1024  # positions that are projected to the vocabulary together: more logits take too much memory
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


class TorchTransformer(TransformerInference):
    """Searches with the modules of a Transformer in evaluation mode, on their device, without changing them."""

    def __init__(self, model: Transformer) -> None:
        weight = model.output_matrix
        super().__init__(model.config, weight.size(0), weight.element_size())
        self.model, self.device, self.precision = model, weight.device, _NAMES[weight.dtype]

    def encode(self, src: Tensor, lengths: Tensor) -> Memory:
        """As `InferenceModel.encode`. A CPU encodes a few sentences at a time, with hardly any padding if they are
        sorted by length."""
        if src.device.type != "cpu":
            return self.model.encode(src, lengths)
        mask = torch.arange(src.size(1)) < lengths.unsqueeze(1)
        values = torch.zeros(*src.shape, self.config.d_model, dtype=self.model.output_matrix.dtype)
        for rows, longest in _parts(lengths.tolist()):
            values[rows, :longest] = self.model.encode(src[rows, :longest], lengths[rows]).values
        return Memory(values, mask)

    def start(self, memory: Memory) -> KeyValueCache:
        """As `InferenceModel.start`: the source's keys and values, and no positions yet."""
        layers = []
        for layer in cast(list[DecoderLayer], self.model.decoder):
            k, v = layer.cross_attention.keys_and_values(memory.values)
            own = (k.new_empty(0, memory.values.size(0), width) for width in layer.self_attention.widths[1:])
            layers.append(LayerCache(k.contiguous(), v.contiguous(), *own))
        bias = memory.values.new_zeros(memory.mask.shape).masked_fill_(~memory.mask, -torch.inf)
        return KeyValueCache(layers, bias[:, None, None, :].repeat(1, self.config.heads, 1, 1))

    def step(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        """As `InferenceModel.step`."""
        model = self.model
        x = model.embed(tokens, model.target_embedding, model.target_positions(state.length, 1))
        for number, layer in enumerate(cast(list[DecoderLayer], model.decoder)):
            x = layer_step(layer, x, state, number)
        state.advance()
        return log_softmax(model.project(model.decoder_norm(x)))

    def score(self, src: Tensor, lengths: Tensor, tgt: Tensor, tgt_lengths: Tensor) -> Tensor:
        """As `InferenceModel.score`, in one pass over all positions."""
        log_probs = torch.zeros(tgt.shape, dtype=torch.float32, device=tgt.device)
        tgt_in, size = shift_right(tgt), max(1, _SCORED // tgt.size(1))
        for start in range(0, len(tgt), size):
            rows = slice(start, start + size)
            S, T = int(lengths[rows].max()), int(tgt_lengths[rows].max())
            memory = self.encode(src[rows, :S], lengths[rows])
            logits = self.model.project(self.model.decode(tgt_in[rows, :T], memory))
            own = logits.log_softmax(-1, torch.float32).gather(2, tgt[rows, :T].unsqueeze(2))
            log_probs[rows, :T] = own.squeeze(2)
        return log_probs

    def attention(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> AttentionWeights:
        """As `InferenceModel.attention`."""
        weights = AttentionWeights()
        memory = self.model.encode(src, lengths, weights.encoder)
        self.model.decode(tgt_in, memory, weights.decoder, weights.cross)
        return weights

    def alignment(self, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int | None) -> Tensor:
        """As `InferenceModel.alignment`."""
        layers: list[Tensor] = []
        self.model.decode(tgt_in, self.encode(src, lengths), record_cross=layers)
        return layers[self.alignment_layer(layer)].float().mean(1)


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax of logits (R, W) in fp32, written over them if they are fp32 already: for a large vocabulary, fresh
    memory takes longer than the softmax."""
    if logits.dtype != torch.float32 or logits.requires_grad:
        return logits.log_softmax(-1, torch.float32)
    return torch.log_softmax(logits, -1, out=logits)


def _parts(lengths: list[int]) -> Iterator[tuple[slice, int]]:
    """Successive sentences of about `_ENCODED` tokens in all, and the length of the longest of them."""
    start = 0
    while start < len(lengths):
        end, longest = start, 0
        while end < len(lengths) and (end == start or max(longest, lengths[end]) * (end + 1 - start) <= _ENCODED):
            longest = max(longest, lengths[end])
            end += 1
        yield slice(start, end), longest
        start = end
