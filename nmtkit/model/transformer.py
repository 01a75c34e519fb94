"""The Transformer (§3): embeddings, encoder, decoder, and the projection to the vocabulary.

Letters: B batch, S source length, T target length, D d_model, W vocabulary. Batch first. Sentences come with their
lengths and are padded at the end; the ids of padding have no effect. Decoding step by step is in `nmtkit.inference`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from nmtkit.model.attention import StackedLinear
from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import Dropout
from nmtkit.model.embedding import Embedding, look_up
from nmtkit.model.layers import DecoderLayer, EncoderLayer
from nmtkit.model.packed_attention import Packing, Padding
from nmtkit.model.positions import LearnedPositions, SinusoidalPositions
from nmtkit.model.residual import as_activations, make_norm
from nmtkit.model.translation_model import TranslationModel
from nmtkit.text.vocabulary import BOS


@dataclass
class Memory:
    """The encoder's output."""

    values: Tensor  # (B, S, D)
    mask: Tensor  # (B, S), False for padding


class Transformer(TranslationModel):
    """The paper's model (§3). If all embeddings are shared, the vocabularies must have the same size."""

    config: TransformerConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": (
            *("source_embedding", "target_embedding", "source_positions", "target_positions"),
            *("source_norm", "target_norm"),
        ),
        "encoder": ("encoder", "encoder_norm"),
        "decoder": ("decoder", "decoder_norm"),
        "output": ("projection", "projection_bias"),
    }
    # Embeddings and positions are looked up outside the graphs. Inside, their gradients would be summed in a different
    # order in each run on a GPU, and a growing table would be compiled again.
    graphs = ("_encode", "_decode", "_decode_packed")

    def __init__(self, config: TransformerConfig, source_size: int, target_size: int) -> None:
        super().__init__()
        config = config.for_vocabularies(joined=source_size == target_size)
        self.config = config
        start = BOS if config.positions == "marian" else None
        self.target_embedding = Embedding(target_size, config.d_model, padding_idx=start)
        self.source_embedding = self.target_embedding
        if config.share_embeddings != "all":
            self.source_embedding = Embedding(source_size, config.d_model)
        self.projection = None
        if config.share_embeddings == "none":
            self.projection = Embedding(target_size, config.d_model)
        self.projection_bias = nn.Parameter(torch.empty(target_size)) if config.output_bias else None
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm, self.decoder_norm = (_norm(config, config.norm == "pre") for _ in range(2))
        self.source_norm, self.target_norm = (_norm(config, config.embedding_norm) for _ in range(2))
        self.initialize()

    @torch.no_grad()
    def initialize(self) -> None:
        """Initialize all parameters with torch's generator.

        | parameter                       | drawn from                                                        |
        |---------------------------------|-------------------------------------------------------------------|
        | embeddings, output, positions   | normal, standard deviation D^-0.5                                 |
        | W_Q, W_K, W_V of all heads      | uniform ±√(6 / (D + H·width)), each block separately (Glorot)     |
        | gate and gated of swiglu        | uniform ±√(6 / (D + F)), each block separately (Glorot)           |
        | other weight matrices           | uniform ±√(6 / (inputs + outputs)) (Glorot)                       |
        | biases                          | 0                                                                 |
        | layer norm, RMSNorm             | gain 1, bias 0                                                    |
        | start of the output             | 0 with `--positions marian`                                       |

        The factor √D (§3.4) gives embeddings unit variance. The variance of the sinusoids is one half.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                widths = module.widths if isinstance(module, StackedLinear) else (module.out_features,)
                for block in torch.split(module.weight, list(widths)):
                    nn.init.xavier_uniform_(block)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
                if module.padding_idx is not None:
                    nn.init.zeros_(module.weight[module.padding_idx])
            elif isinstance(module, LearnedPositions):
                nn.init.normal_(module.table, std=self.config.d_model**-0.5)
        if self.projection_bias is not None:
            nn.init.zeros_(self.projection_bias)

    def encode(self, src: Tensor, lengths: Tensor, record: list[Tensor] | None = None) -> Memory:
        """Encode src (B, S) with lengths (B,). Append each layer's self-attention weights (B, H, S, S) to `record`.
        Without the option `source_end`, </s> is masked like padding."""
        if not self.config.source_end:
            lengths = (lengths - 1).clamp(min=1)
        return self._encode(self.source_embedding(src), lengths, self.source_positions(0, src.size(1)), record)

    def _encode(self, embedded: Tensor, lengths: Tensor, positions: Tensor, record: list[Tensor] | None) -> Memory:
        mask = torch.arange(embedded.size(1), device=embedded.device) < lengths.unsqueeze(1)
        x = self.inputs(embedded, positions, self.source_norm)
        for layer in self.encoder:
            x = self.through(layer, x, mask[:, None, None, :], record, self.rotation(positions))
        return Memory(cast(Tensor, self.encoder_norm(x)), mask)

    def decode(
        self,
        tgt_in: Tensor,
        memory: Memory,
        record_self: list[Tensor] | None = None,
        record_cross: list[Tensor] | None = None,
        record_last: list[Tensor] | None = None,
    ) -> Tensor:
        """Decode tgt_in (B, T) to (B, T, D).

        Appends each layer's attention weights to `record_self` (B, H, T, T) and `record_cross` (B, H, T, S).
        `record_last` gets only the weights of the last layer to the source, so that all other layers use fused kernels.
        """
        positions = self.target_positions(0, tgt_in.size(1))
        return self._decode(self.target_embedding(tgt_in), memory, positions, record_self, record_cross, record_last)

    def _decode(
        self,
        embedded: Tensor,
        memory: Memory,
        positions: Tensor,
        record_self: list[Tensor] | None,
        record_cross: list[Tensor] | None,
        record_last: list[Tensor] | None,
    ) -> Tensor:
        x, mask = self.inputs(embedded, positions, self.target_norm), memory.mask[:, None, None, :]
        for number, layer in enumerate(self.decoder, 1):
            rotation = self.rotation(positions)
            record = record_last if record_last is not None and number == len(self.decoder) else record_cross
            x = self.through(layer, x, memory.values, mask, record_self, record, None, rotation)
        return cast(Tensor, self.decoder_norm(x))

    def decode_packed(self, src: Tensor, source: Packing, tgt_in: Tensor, target: Packing) -> Tensor:
        """Encode packed src (S,), and decode packed tgt_in (T,) to (T, D)."""
        decode = self._decode_packed
        if source.attention is None or isinstance(source.attention, Padding):
            # padding groups differ in almost every batch, and torch cannot compile nmtkit's operators
            decode = torch.compiler.disable(decode)  # type: ignore[no-untyped-call]
        source_positions = look_up(source.positions, self.source_positions(0, source.span))
        target_positions = look_up(target.positions, self.target_positions(0, target.span))
        embedded = self.source_embedding(src), self.target_embedding(tgt_in)
        return decode(embedded, (source_positions, target_positions), source, target)

    def _decode_packed(
        self, embedded: tuple[Tensor, Tensor], positions: tuple[Tensor, Tensor], source: Packing, target: Packing
    ) -> Tensor:
        memory = self.inputs(embedded[0], positions[0], self.source_norm)
        for layer in self.encoder:
            memory = self.through(layer, memory, source, None, self.rotation(positions[0]))
        memory = self.encoder_norm(memory)
        x = self.inputs(embedded[1], positions[1], self.target_norm)
        for layer in self.decoder:
            x = self.through(layer, x, memory, source, None, None, target, self.rotation(positions[1]))
        return cast(Tensor, self.decoder_norm(x))

    @property
    def output_matrix(self) -> Tensor:
        """The projection (W, D) before the softmax. It is the target embedding, unless nothing is shared (§3.4)."""
        return (self.projection or self.target_embedding).weight

    @property
    def output_bias(self) -> Tensor | None:
        """The bias (W,) of the projection; None without the option `output_bias`."""
        return self.projection_bias

    def layers(self) -> Iterable[nn.Module]:
        """Return the layers of encoder and decoder."""
        return (*self.encoder, *self.decoder)

    def inputs(self, embedded: Tensor, positions: Tensor, norm: nn.Module) -> Tensor:
        """Compute Dropout(√D · embedding + position) (…, D) from embedded tokens (…, D) (§3.4, §3.5, §5.4), with `norm`
        before dropout. Rotary positions are not added here."""
        scaled = embedded * self.config.input_scale
        summed = scaled if self.config.positions == "rotary" else scaled + positions
        return cast(Tensor, self.dropout(norm(as_activations(summed))))

    def rotation(self, positions: Tensor) -> Tensor | None:
        """Return the encodings of positions (T, K) for the layers, if they are rotary."""
        return positions if self.config.positions == "rotary" else None


def _norm(config: TransformerConfig, is_used: bool) -> nn.Module:
    return make_norm(config) if is_used else nn.Identity()


def _positions(config: TransformerConfig) -> nn.Module:
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model)
    width = config.key_size if config.positions == "rotary" else config.d_model
    return SinusoidalPositions(width, config.positions)
