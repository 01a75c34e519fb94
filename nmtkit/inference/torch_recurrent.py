"""The recurrent model as an inference model.

Letters: R rows (open hypotheses), H d_model.
"""

from collections.abc import Iterable
from typing import cast

from torch import Tensor

from nmtkit.inference.sentence_rows import RowState, SentenceRows
from nmtkit.inference.torch_inference import TorchInference
from nmtkit.model.recurrent import LstmState, Recurrent, RecurrentLayer, RecurrentMemory


class RecurrentState(RowState):
    """The LSTM states of all rows, and the encoded source of each sentence with the keys of its attention."""

    def __init__(self, memory: RecurrentMemory, keys: Tensor, layers: int) -> None:
        self.memory, self.keys = memory, keys
        self.rows = SentenceRows(keys.size(0), keys.device)
        zeros = keys.new_zeros(1, keys.size(0), keys.size(2))
        self.layers: list[LstmState] = [(zeros, zeros)] * layers

    def _reorder_rows(self, origins: Tensor) -> None:
        self.layers = [(h.index_select(1, origins), c.index_select(1, origins)) for h, c in self.layers]

    def _keep_sentences(self, sentences: Tensor) -> None:
        self.memory = RecurrentMemory(self.memory.values[sentences], self.memory.mask[sentences])
        self.keys = self.keys[sentences]


class TorchRecurrent(TorchInference):
    """Searches with the recurrent model. A step continues each LSTM from its last state."""

    model: Recurrent
    attention_layers = 1

    def start(self, memory: RecurrentMemory) -> RecurrentState:
        return RecurrentState(memory, self.model.attention.keys(memory.values), len(self.model.decoder))

    def logits(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        model = self.model
        bottom, *others = cast(Iterable[RecurrentLayer], model.decoder)
        x, state.layers[0] = bottom(model.target_embedding(tokens).unsqueeze(1), None, state.layers[0])  # (R, 1, H)
        queries = state.rows.by_sentence(x.squeeze(1))
        context = state.rows.by_row(model.attention(queries, state.keys, state.memory)).unsqueeze(1)
        for number, layer in enumerate(others, 1):
            x, state.layers[number] = layer(x, context, state.layers[number])
        return model.project(x.squeeze(1))

    def state_bytes(self, tokens: int) -> int:
        """Return the bytes of h and c of each layer, which do not depend on `tokens`."""
        return 2 * len(self.model.decoder) * self.model.config.d_model * self.model.output_matrix.element_size()
