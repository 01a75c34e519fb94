"""The recurrent model of GNMT (Wu et al. 2016): LSTM layers with residual connections, and additive attention.

The details follow NVIDIA's GNMT v2: the first decoder layer queries the source with its output of the same step, and
all other decoder layers read the context next to their input.

Letters: B batch, S source length, T target length, H d_model, W vocabulary. Batch first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.dropout import Dropout
from nmtkit.model.embedding import Embedding
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.translation_model import TranslationModel

LstmState = tuple[Tensor, Tensor]  # h and c, both (1, B, H)
_INITIAL = 0.1  # weights and biases are uniform in ± this


@dataclass
class RecurrentMemory:
    """The encoder's output."""

    values: Tensor  # (B, S, H)
    mask: Tensor  # (B, S), False for padding


class BidirectionalLayer(nn.Module):
    """An LSTM in each direction. Their outputs are concatenated."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.ahead = nn.LSTM(config.d_model, config.d_model, batch_first=True)
        self.back = nn.LSTM(config.d_model, config.d_model, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map x (B, S, H) with lengths (B,) to (B, S, 2H)."""
        x = self.dropout(x)
        ahead, _ = self.ahead(x)
        back, _ = self.back(reverse(x, lengths))
        return torch.cat((ahead, reverse(back, lengths)), dim=-1)


class RecurrentLayer(nn.Module):
    """The layer x + LSTM(Dropout([x, context])), without the residual x if the widths differ."""

    def __init__(self, inputs: int, config: RecurrentConfig, residual: bool) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.lstm = nn.LSTM(inputs, config.d_model, batch_first=True)
        self.residual = residual

    def forward(
        self, x: Tensor, context: Tensor | None = None, state: LstmState | None = None
    ) -> tuple[Tensor, LstmState]:
        """Map x (B, T, inputs) and context (B, T, H) to (B, T, H) and the last state. The first state defaults to 0."""
        inputs = x if context is None else torch.cat((x, context), dim=-1)
        y, state = self.lstm(self.dropout(inputs), state)
        return (x + y if self.residual else y), state


class AdditiveAttention(nn.Module):
    """Additive attention: softmax of g · v/‖v‖ · tanh(W_Q·q + W_K·k + b) over the source (Bahdanau et al. 2015)."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.q = nn.Linear(config.d_model, config.d_model, bias=False)
        self.k = nn.Linear(config.d_model, config.d_model, bias=False)
        self.bias = nn.Parameter(torch.empty(config.d_model))
        self.direction = nn.Parameter(torch.empty(config.d_model))
        self.gain = nn.Parameter(torch.empty(1))

    def keys(self, values: Tensor) -> Tensor:
        """Project the encoder's output (B, S, H) to keys (B, S, H)."""
        keys: Tensor = self.k(values) + self.bias
        return keys

    def forward(self, x: Tensor, keys: Tensor, memory: RecurrentMemory, record: list[Tensor] | None = None) -> Tensor:
        """Compute the context (B, T, H) of queries x (B, T, H). Append the weights (B, 1, T, S) to `record`."""
        sums = (self.q(x).unsqueeze(2) + keys.unsqueeze(1)).tanh_()  # (B, T, S, H)
        vector = self.direction * (self.gain / self.direction.norm())
        scores = F.linear(sums, vector.unsqueeze(0)).squeeze(3)
        weights = torch.softmax(scores.masked_fill(~memory.mask.unsqueeze(1), float("-inf")), dim=-1)
        if record is not None:
            record.append(weights.detach().unsqueeze(1))
        return weights @ memory.values


class Recurrent(TranslationModel):
    """The recurrent model. If all embeddings are shared, the vocabularies must have the same size."""

    config: RecurrentConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": ("source_embedding", "target_embedding"),
        "encoder": ("encoder",),
        "decoder": ("attention", "decoder"),
        "output": ("projection",),
    }

    def __init__(self, config: RecurrentConfig, source_size: int, target_size: int) -> None:
        super().__init__()
        config = config.for_vocabularies(joined=source_size == target_size)
        self.config, H = config, config.d_model
        self.target_embedding = Embedding(target_size, H)
        self.source_embedding = self.target_embedding
        if config.share_embeddings != "all":
            self.source_embedding = Embedding(source_size, H)
        above = (RecurrentLayer(H, config, residual=True) for _ in range(config.encoder_layers - 2))
        second = RecurrentLayer(2 * H, config, residual=False)
        self.encoder = nn.ModuleList((BidirectionalLayer(config), second, *above))
        self.attention = AdditiveAttention(config)
        first = RecurrentLayer(H, config, residual=False)
        above = (RecurrentLayer(2 * H, config, residual=number > 1) for number in range(1, config.decoder_layers))
        self.decoder = nn.ModuleList((first, *above))
        self.projection = nn.Linear(H, target_size)
        if config.has_tied_output:
            self.projection.weight = self.target_embedding.weight
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize with torch's generator: gain of the attention 1/√H, its bias 0, all other parameters uniform in
        ±0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_INITIAL, _INITIAL)
        nn.init.constant_(self.attention.gain, self.config.d_model**-0.5)
        nn.init.zeros_(self.attention.bias)

    def encode(self, src: Tensor, lengths: Tensor) -> RecurrentMemory:
        """Encode src (B, S) with lengths (B,). Both directions read padding after the tokens, so it has no effect."""
        bottom, *others = self.encoder
        x = cast(Tensor, self.through(bottom, self.source_embedding(src), lengths))
        for layer in others:
            x, _ = self.through(layer, x)
        return RecurrentMemory(x, torch.arange(src.size(1), device=src.device) < lengths.unsqueeze(1))

    def decode(self, tgt_in: Tensor, memory: RecurrentMemory, record: list[Tensor] | None = None) -> Tensor:
        """Decode tgt_in (B, T) to (B, T, H). Append the attention weights (B, 1, T, S) to `record`."""
        bottom, *others = self.decoder
        x, _ = self.through(bottom, self.target_embedding(tgt_in))
        context = self.through(self.attention, x, self.attention.keys(memory.values), memory, record)
        for layer in others:
            x, _ = self.through(layer, x, context)
        return cast(Tensor, x)

    @property
    def output_matrix(self) -> Tensor:
        """The projection to the target vocabulary (W, H)."""
        return self.projection.weight

    @property
    def output_bias(self) -> Tensor:
        """The bias (W,) of the projection."""
        return self.projection.bias

    def layers(self) -> Iterable[nn.Module]:
        """Return the layers of encoder and decoder, and the attention."""
        return (*self.encoder, self.attention, *self.decoder)


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first lengths[b] positions of each sentence b in x (B, S, width). Padding stays at the end."""
    positions = torch.arange(x.size(1), device=x.device)
    mirrored = lengths.unsqueeze(1) - 1 - positions
    index = torch.where(mirrored >= 0, mirrored, positions)
    rows = index + torch.arange(x.size(0), device=x.device).unsqueeze(1) * x.size(1)
    return x.flatten(0, 1).index_select(0, rows.flatten()).view_as(x)
