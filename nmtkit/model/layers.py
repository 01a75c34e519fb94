"""Encoder and decoder layers (§3.1): attention and feed-forward sub-layers, each in a residual with layer norm."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.attention import CrossAttention, SelfAttention, StackedLinear
from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import Dropout, dropout
from nmtkit.model.packed_attention import Packing
from nmtkit.model.residual import add_and_norm, make_norm
from nmtkit.model.ssru import Ssru


def _swiglu(x: Tensor) -> Tensor:
    """Map the gate and what it gates, side by side (…, 2·F), to swish(gate) times the other (…, F)."""
    gate, gated = x.chunk(2, dim=-1)
    return F.silu(gate) * gated


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "swiglu": _swiglu,
}


class FeedForward(nn.Module):
    """The feed-forward network f(x·W1 + b1)·W2 + b2, applied at each position (§3.3).

    In the paper, f(x) is max(0, x). With `activation` "gelu" it is x·Φ(x), with the exact Φ(x) of the normal
    distribution; with "swish" it is x·σ(x), also known as SiLU. With "swiglu", the rows of `inner` are W, then V, and
    f(x·W1) is swish(x·W) times x·V (Shazeer 2020).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = StackedLinear(config.d_model, config.inner_widths, config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, config.bias)
        self.activation = _ACTIVATIONS[config.activation]
        self.dropout_rate = config.activation_dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map x (…, D) to (…, D)."""
        hidden = dropout(self.activation(self.inner(x)), self.dropout_rate if self.training else 0.0)
        y: Tensor = self.outer(hidden)
        return y


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))) as in the paper, or x + Dropout(Sublayer(LayerNorm(x))) with pre-norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a sub-layer to x (…, D) with a residual connection and layer norm, and return (…, D)."""
        y: Tensor
        if self.pre_norm:
            y = self.dropout(sublayer(self.norm(x)), residual=x)
        else:
            y = add_and_norm(x, sublayer(x), self.dropout, self.norm)
        return y


class EncoderLayer(nn.Module):
    """An encoder layer: self-attention, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self, x: Tensor, mask: Tensor | Packing, record: list[Tensor] | None = None, rotation: Tensor | None = None
    ) -> Tensor:
        """Map x (B, S, D) with mask (B, 1, 1, S), or packed x (S, D) with a packing as mask, to the shape of x.
        `rotation` (S, K) is that of `SelfAttention`."""
        x = self.around_self_attention(x, lambda y: self.self_attention(y, mask, record, rotation))
        x = self.around_feed_forward(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """A decoder layer: masked self-attention or an SSRU, attention to the encoder's output, then feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = Ssru(config) if config.decoder_recurrence else SelfAttention(config, causal=True)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_cross_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor | Packing,
        record_self: list[Tensor] | None = None,
        record_cross: list[Tensor] | None = None,
        target: Packing | None = None,
        rotation: Tensor | None = None,
    ) -> Tensor:
        """Map x (B, T, D), with memory (B, S, D) and memory_mask (B, 1, 1, S), to (B, T, D).

        Padding is at the end of a target, so the causal mask hides it from all tokens. Packed sentences have a source
        packing as mask, and a target packing: x is (T, D), memory (S, D) and the result (T, D). `rotation` (T, K) is
        that of `SelfAttention`.
        """
        x = self.around_self_attention(x, lambda y: self.self_attention(y, target, record_self, rotation))
        x = self.around_cross_attention(x, lambda y: self.cross_attention(y, memory, memory_mask, record_cross, target))
        x = self.around_feed_forward(x, self.feed_forward)
        return x
