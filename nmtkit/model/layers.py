"""Encoder and decoder layers (§3.1): attention and feed-forward sub-layers, each in a residual with layer norm."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.attention import CrossAttention, SelfAttention, attend_once, attend_together
from nmtkit.model.config import ModelConfig
from nmtkit.model.dropout import Dropout, dropout
from nmtkit.model.state import DecoderState


class FeedForward(nn.Module):
    """max(0, x·W1 + b1)·W2 + b2, at each position alike (§3.3)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout_rate = config.activation_dropout

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, D)."""
        hidden = dropout(F.relu(self.inner(x), inplace=True), self.dropout_rate if self.training else 0.0)
        y: Tensor = self.outer(hidden)
        return y


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))) as in the paper, or x + Dropout(Sublayer(LayerNorm(x))) with pre-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = config.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Pass x (…, D) around and through a sub-layer."""
        y: Tensor
        if self.pre_norm:
            y = x + self.dropout(sublayer(self.norm(x)))
        else:
            y = self.norm(x + self.dropout(sublayer(x)))
        return y


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Tensor, mask: Tensor, record: list[Tensor] | None = None) -> Tensor:
        """x (B, S, D), mask (B, 1, 1, S): (B, S, D)."""
        x = self.around_self_attention(x, lambda y: self.self_attention(y, mask, record))
        x = self.around_feed_forward(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=True)
        self.cross_attention = CrossAttention(config)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = Residual(config)
        self.around_cross_attention = Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        record_self: list[Tensor] | None = None,
        record_cross: list[Tensor] | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D), memory_mask (B, 1, 1, S): (B, T, D).

        Padding stands at the end of a target, where the causal mask already hides it from every real position.
        """
        k, v = self.cross_attention.keys_and_values(memory)
        x = self.around_self_attention(x, lambda y: self.self_attention(y, None, record_self))
        x = self.around_cross_attention(x, lambda y: self.cross_attention(y, k, v, memory_mask, record_cross))
        x = self.around_feed_forward(x, self.feed_forward)
        return x

    def step(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """One position of every row: x (R, D) to (R, D)."""
        x = self.around_self_attention(x, lambda y: self._step_self_attention(y, state, layer))
        x = self.around_cross_attention(x, lambda y: self._step_cross_attention(y, state, layer))
        x = self.around_feed_forward(x, self.feed_forward)
        return x

    def _step_self_attention(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """x (R, D): each row attends to its own positions so far."""
        attention = self.self_attention
        q, k, v = attention.qkv(x).split(attention.widths, dim=-1)
        k, v = state.append(layer, k, v)
        if attention.window is not None:
            k, v = k[-attention.window - 1 :], v[-attention.window - 1 :]
        attended: Tensor = attention.out(attend_once(q, k, v, attention.heads))
        return attended

    def _step_cross_attention(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """x (R, D): the rows of a sentence query its source together, as if they were a sequence, so that the source's
        keys and values are never repeated."""
        attention, cache = self.cross_attention, state.layers[layer]
        q = state.by_sentence(attention.q(x))
        heads = attend_together(q, cache.memory_keys, cache.memory_values, state.memory_bias)
        attended: Tensor = attention.out(state.by_row(heads))
        return attended
