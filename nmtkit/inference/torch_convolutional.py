"""The convolutional model as an inference model.

Letters: R rows (open hypotheses), B sentences, n rows of a sentence, E d_model, C channels, k kernel width.
"""

import copy
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from nmtkit.inference.sentence_rows import RowState, SentenceRows
from nmtkit.inference.torch_inference import TorchInference
from nmtkit.model.convolutional import Convolutional, ConvolutionalDecoderLayer, ConvolutionalMemory, WeightNorm


class ConvolutionalState(RowState):
    """The last k - 1 inputs (R, inputs, k - 1) of each layer, and the encoded source of each sentence."""

    def __init__(self, memory: ConvolutionalMemory, inputs: list[Tensor]) -> None:
        self.memory, self.inputs, self.length = memory, inputs, 0
        self.rows = SentenceRows(memory.keys.size(0), memory.keys.device)

    def _reorder_rows(self, origins: Tensor) -> None:
        self.inputs = [past.index_select(0, origins) for past in self.inputs]

    def _keep_sentences(self, sentences: Tensor) -> None:
        keys, values, mask = self.memory.keys, self.memory.values, self.memory.mask
        self.memory = ConvolutionalMemory(keys[sentences], values[sentences], mask[sentences])


class TorchConvolutional(TorchInference):
    """Searches with the convolutional model. A step convolves the last k inputs of each layer with plain weights."""

    model: Convolutional

    def __init__(self, model: Convolutional) -> None:
        plain = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})  # shares them
        for module in plain.modules():
            if isinstance(module, WeightNorm):
                module.fold()
        super().__init__(plain)
        self.longest_sequence = model.config.max_positions - 1
        self.attention_layers = len(model.decoder)

    def start(self, memory: ConvolutionalMemory) -> ConvolutionalState:
        """Return the state of B rows, with zeros before the first position; see `InferenceModel.start`."""
        rows, layers = memory.keys.size(0), cast(Iterable[ConvolutionalDecoderLayer], self.model.decoder)
        return ConvolutionalState(
            memory, [memory.keys.new_zeros(rows, layer.convolution.direction.size(1), layer.reach) for layer in layers]
        )

    def logits(self, tokens: Tensor, state: ConvolutionalState) -> Tensor:
        model = self.model
        target = model.embed(tokens, model.target_embedding, model.target_positions(state.length, 1))  # (R, E)
        x, embedded = model.decoder_in(target), state.rows.by_sentence(target)
        for number, layer in enumerate(cast(Iterable[ConvolutionalDecoderLayer], model.decoder)):
            inputs = torch.cat((state.inputs[number], x.unsqueeze(2)), dim=2)  # (R, ·, k)
            state.inputs[number] = inputs[:, :, 1:]
            queries = state.rows.by_sentence(layer.convolution.at_one_position(inputs))  # (B, n, C)
            attended = state.rows.by_row(layer.attention(queries, embedded, state.memory))
            x = layer.add_residual(attended, x)
        state.length += 1
        return model.project(model.decoder_out(x))

    def state_bytes(self, tokens: int) -> int:
        """Return the bytes of the inputs of each layer, which do not depend on `tokens`."""
        numbers = sum((shape.kernel - 1) * shape.inputs for shape in self.model.config.decoder_layers)
        return numbers * self.model.output_matrix.element_size()
