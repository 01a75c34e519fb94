"""The convolutional model ConvS2S (Gehring et al. 2017): gated convolutions, with attention in every decoder layer.

Sums of two terms are multiplied by √½ to preserve their variance (§3.5).

Letters: B batch, S source length, T target length, E d_model, C channels, k kernel width, W vocabulary. Batch first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.convolutional_config import ConvolutionalConfig, LayerShape
from nmtkit.model.dropout import Dropout
from nmtkit.model.embedding import Embedding
from nmtkit.model.positions import LearnedPositions
from nmtkit.model.translation_model import TranslationModel

_HALF = 0.5**0.5
_TABLE_DEVIATION = 0.1  # standard deviation of embeddings and positions


@dataclass
class ConvolutionalMemory:
    """The encoder's output."""

    keys: Tensor  # (B, S, E)
    values: Tensor  # (B, S, E)
    mask: Tensor  # (B, S), False for padding


class WeightNorm(nn.Module):
    """Weights W = g · V/‖V‖ for each output, and a bias (Salimans and Kingma 2016)."""

    gain: nn.Parameter | None

    def __init__(self, outputs: int, *inputs: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(outputs, *inputs))
        self.gain = nn.Parameter(torch.empty(outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    @property
    def weight(self) -> Tensor:
        """The weights W (outputs, inputs, …), computed from gain and direction."""
        if self.gain is None:
            return self.direction
        scale = self.gain / self.direction.flatten(1).norm(dim=1)
        weight: Tensor = self.direction * scale.view(-1, *(1,) * (self.direction.dim() - 1))
        return weight

    @torch.no_grad()
    def initialize(self, deviation: float) -> None:
        """Draw W from a normal distribution with mean 0 and this standard deviation, and set the bias to 0."""
        nn.init.normal_(self.direction, std=deviation)
        if self.gain is not None:
            self.gain.copy_(self.direction.flatten(1).norm(dim=1))
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def fold(self) -> None:
        """Replace V with W and remove g, for inference."""
        self.direction = nn.Parameter(self.weight, requires_grad=False)
        self.gain = None


class NormalizedLinear(WeightNorm):
    """A linear layer with weight normalization."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(outputs, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (…, inputs) to (…, outputs)."""
        return F.linear(x, self.weight, self.bias)


class GatedConvolution(WeightNorm):
    """A convolution with weight normalization and a gated linear unit A · σ(B) of its outputs A and B (§3.2)."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(2 * shape.channels, shape.inputs, shape.kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, T + k - 1, inputs) to (B, T, C)."""
        return F.glu(F.conv1d(x.transpose(1, 2), self.weight, self.bias), dim=1).transpose(1, 2)

    def at_one_position(self, x: Tensor) -> Tensor:
        """Map x (R, inputs, k), k inputs in each row, to one position (R, C). Faster than a convolution."""
        return F.glu(F.linear(x.flatten(1), self.weight.flatten(1), self.bias), dim=1)


class ConvolutionalLayer(nn.Module):
    """The common parts of encoder and decoder layers."""

    def __init__(self, shape: LayerShape, dropout: float) -> None:
        super().__init__()
        self.reach = shape.kernel - 1
        self.dropout = Dropout(dropout)
        self.convolution = GatedConvolution(shape)
        self.residual: nn.Module = nn.Identity()
        if shape.inputs != shape.channels:
            self.residual = NormalizedLinear(shape.inputs, shape.channels)

    def add_residual(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the layer's input x (…, inputs) to y (…, C), projected to (…, C) if the widths differ."""
        return cast(Tensor, (y + self.residual(x)) * _HALF)


class ConvolutionalEncoderLayer(ConvolutionalLayer):
    """A convolution over the neighborhood of each position, with a residual connection."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map x (B, S, inputs) with mask (B, S), False for padding, to (B, S, C)."""
        y = self.dropout(x * mask.unsqueeze(2))
        y = self.convolution(F.pad(y, (0, 0, self.reach // 2, self.reach - self.reach // 2)))
        return self.add_residual(y, x)


class ConvolutionalAttention(nn.Module):
    """Attention of a decoder layer to the source (§3.3)."""

    def __init__(self, channels: int, d_model: int) -> None:
        super().__init__()
        self.query = NormalizedLinear(channels, d_model)
        self.out = NormalizedLinear(d_model, channels)

    def forward(
        self, x: Tensor, target: Tensor, memory: ConvolutionalMemory, record: list[Tensor] | None = None
    ) -> Tensor:
        """Return the context (B, T, C) of x (B, T, C) and target (B, T, E). Append weights (B, 1, T, S) to `record`."""
        queries = (self.query(x) + target) * _HALF
        scores = (queries @ memory.keys.transpose(1, 2)).masked_fill(~memory.mask.unsqueeze(1), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        if record is not None:
            record.append(weights.detach().unsqueeze(1))
        lengths = memory.mask.sum(1).view(-1, 1, 1)
        context = (weights @ memory.values) * lengths.to(memory.values.dtype).sqrt()
        return cast(Tensor, (x + self.out(context)) * _HALF)


class ConvolutionalDecoderLayer(ConvolutionalLayer):
    """A convolution over a position and earlier positions, then attention to the source, with a residual connection."""

    def __init__(self, shape: LayerShape, config: ConvolutionalConfig) -> None:
        super().__init__(shape, config.dropout)
        self.attention = ConvolutionalAttention(shape.channels, config.d_model)

    def forward(
        self, x: Tensor, target: Tensor, memory: ConvolutionalMemory, record: list[Tensor] | None = None
    ) -> Tensor:
        """Map x (B, T, inputs) to (B, T, C). Other arguments as in `ConvolutionalAttention.forward`."""
        y = self.convolution(F.pad(self.dropout(x), (0, 0, self.reach, 0)))
        return self.add_residual(self.attention(y, target, memory, record), x)


class Convolutional(TranslationModel):
    """The convolutional model. If all embeddings are shared, the vocabularies must have the same size."""

    config: ConvolutionalConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": ("source_embedding", "target_embedding", "source_positions", "target_positions"),
        "encoder": ("encoder_in", "encoder", "encoder_out"),
        "decoder": ("decoder_in", "decoder", "decoder_out"),
        "output": ("projection",),
    }

    def __init__(self, config: ConvolutionalConfig, source_size: int, target_size: int) -> None:
        super().__init__()
        config = config.for_vocabularies(joined=source_size == target_size)
        self.config, E, rate = config, config.d_model, config.dropout
        self.target_embedding = Embedding(target_size, E)
        self.source_embedding = self.target_embedding
        if config.share_embeddings != "all":
            self.source_embedding = Embedding(source_size, E)
        self.source_positions = LearnedPositions(config.max_positions, E)
        self.target_positions = LearnedPositions(config.max_positions, E)
        self.dropout = Dropout(rate)
        encoder, decoder = config.encoder_layers, config.decoder_layers
        self.encoder_in = NormalizedLinear(E, encoder[0].inputs)
        self.encoder = nn.ModuleList(ConvolutionalEncoderLayer(shape, rate) for shape in encoder)
        self.encoder_out = NormalizedLinear(encoder[-1].channels, E)
        self.decoder_in = NormalizedLinear(E, decoder[0].inputs)
        self.decoder = nn.ModuleList(ConvolutionalDecoderLayer(shape, config) for shape in decoder)
        self.decoder_out = NormalizedLinear(decoder[-1].channels, config.output_width)
        self.projection: NormalizedLinear | nn.Linear
        if config.has_tied_output:
            self.projection = nn.Linear(E, target_size)
            self.projection.weight = self.target_embedding.weight
        else:
            self.projection = NormalizedLinear(config.output_width, target_size)
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize all parameters with torch's generator (§3.5); p is --dropout.

        | parameter                                        | drawn from                                               |
        |--------------------------------------------------|----------------------------------------------------------|
        | embeddings, positions                            | normal, standard deviation 0.1                           |
        | convolutions before gated linear units           | normal, standard deviation √(4(1 - p) / (k · inputs))    |
        | linear layers after dropout: both inputs, output | normal, standard deviation √((1 - p) / inputs)           |
        | other linear layers                              | normal, standard deviation √(1 / inputs)                 |
        | biases                                           | 0                                                        |
        """
        kept = 1 - self.config.dropout
        for module in self.modules():
            if isinstance(module, GatedConvolution):
                module.initialize((4 * kept / module.direction[0].numel()) ** 0.5)
            elif isinstance(module, NormalizedLinear):
                after_dropout = module in (self.encoder_in, self.decoder_in, self.projection)
                module.initialize(((kept if after_dropout else 1) / module.direction.size(1)) ** 0.5)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=_TABLE_DEVIATION)
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.table, std=_TABLE_DEVIATION)
        nn.init.zeros_(self.projection.bias)

    def encode(self, src: Tensor, lengths: Tensor) -> ConvolutionalMemory:
        """Encode src (B, S) with lengths (B,). Every attention uses the result twice, so its gradient is divided by the
        number of uses (§3.5)."""
        mask = torch.arange(src.size(1), device=src.device) < lengths.unsqueeze(1)
        embedded = self.embed(src, self.source_embedding, self.source_positions(0, src.size(1)))
        x = self.encoder_in(embedded)
        for layer in self.encoder:
            x = self.through(layer, x, mask)
        keys = self.encoder_out(x)
        if keys.requires_grad:
            keys.register_hook(lambda gradient: gradient * (0.5 / len(self.decoder)))
        return ConvolutionalMemory(keys, (keys + embedded) * _HALF, mask)

    def decode(self, tgt_in: Tensor, memory: ConvolutionalMemory, record: list[Tensor] | None = None) -> Tensor:
        """Decode tgt_in (B, T) to (B, T, output_width). Append each layer's attention (B, 1, T, S) to `record`."""
        embedded = self.embed(tgt_in, self.target_embedding, self.target_positions(0, tgt_in.size(1)))
        x = self.decoder_in(embedded)
        for layer in self.decoder:
            x = self.through(layer, x, embedded, memory, record)
        return cast(Tensor, self.dropout(self.decoder_out(x)))

    @property
    def output_matrix(self) -> Tensor:
        """The projection to the target vocabulary (W, output_width)."""
        return self.projection.weight

    @property
    def output_bias(self) -> Tensor:
        """The bias (W,) of the projection."""
        return self.projection.bias

    def layers(self) -> Iterable[nn.Module]:
        """Return the layers of encoder and decoder."""
        return (*self.encoder, *self.decoder)

    def embed(self, ids: Tensor, embedding: Embedding, positions: Tensor) -> Tensor:
        """Compute the embeddings (…, E) of ids (…), with positions and dropout (§3.1)."""
        return cast(Tensor, self.dropout(embedding(ids) + positions))
