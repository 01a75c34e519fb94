"""The plain Transformer as an inference model: on any device, and the reference for the other backends."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from nmtkit.inference.decoder_step import layer_step
from nmtkit.inference.kv_cache import KeyValueCache, LayerCache
from nmtkit.inference.protocol import AttentionWeights, InferenceModel
from nmtkit.inference.torch_inference import TorchInference
from nmtkit.model.config import TransformerConfig
from nmtkit.model.layers import DecoderLayer
from nmtkit.model.transformer import Memory, Transformer

_ENCODED = 512  # tokens that a CPU encodes together: it gains nothing from more


class TransformerInference(InferenceModel):
    """An inference model of a Transformer, without the computation."""

    def __init__(self, config: TransformerConfig, vocabulary_size: int, item_bytes: int) -> None:
        """`item_bytes` is the size of a number in the key-value cache."""
        self.config, self.vocabulary_size = config, vocabulary_size
        self.longest_sequence = config.max_positions - 1 if config.positions == "learned" else None
        self.attention_layers = config.decoder_layers
        self._token_bytes = config.decoder_layers * config.heads * (config.key_size + config.value_size) * item_bytes

    def state_bytes(self, tokens: int) -> int:
        """As `InferenceModel.state_bytes`: the keys and values of each token in each layer."""
        return tokens * self._token_bytes


class TorchTransformer(TorchInference, TransformerInference):
    """As `TorchInference`, with a key-value cache."""

    model: Transformer

    def __init__(self, model: Transformer) -> None:
        TorchInference.__init__(self, model)
        TransformerInference.__init__(self, model.config, self.vocabulary_size, model.output_matrix.element_size())

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
        bias = bias[:, None, None, :].repeat(1, self.config.heads, 1, 1)
        return KeyValueCache(layers, bias, self.model.target_positions)

    def logits(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        """As `TorchInference.logits`."""
        model = self.model
        x = model.inputs(model.target_embedding(tokens), state.positions(state.length, 1))
        for number, layer in enumerate(cast(list[DecoderLayer], model.decoder)):
            x = layer_step(layer, x, state, number)
        state.length += 1
        return model.project(model.decoder_norm(x))

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
