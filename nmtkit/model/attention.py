"""Scaled dot-product and multi-head attention (§3.2), with d_k and d_v independent of d_model / h.

Letters: B batch, T queries, S keys, D d_model, H heads, K d_k, V d_v, R window. Masks are boolean, True where attention
is allowed, and broadcast to (B, H, T, S).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import dropout
from nmtkit.model.packed_attention import Packing, Padding, attend_packed
from nmtkit.model.residual import RMSNorm
from nmtkit.model.short_attention import Sizes, attend_short, serves


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_rate: float = 0.0,
    record: list[Tensor] | None = None,
    causal: bool = False,
) -> Tensor:
    """Compute softmax(Q·Kᵀ / √d_k)·V (B, H, T, V) from q (B, H, T, K), k (B, H, S, K) and v (B, H, S, V) (§3.2.1).

    `causal` replaces `mask` with a causal mask: fused kernels are faster with the flag. If `record` is given, the
    weights (B, H, T, S) before dropout are appended to it, and no fused kernel is used, as it cannot return them.
    """
    if record is None and _fused_pays(q, k):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_rate, is_causal=causal)
    if causal:
        mask = position_mask(q.size(2), q.device, causal, window=q.size(2))
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if record is not None:
        record.append(weights)
    return dropout(weights, dropout_rate) @ v


def _fused_pays(q: Tensor, k: Tensor) -> bool:
    """Whether torch's fused kernel is faster for q (B, H, T, K) and k (B, H, S, K); see benchmarks/operators.py.

    On CPUs it is slow for few queries, as in a decoding step, and its bf16 backward pass is slow for short sequences.
    With torch.compile, the lengths are ignored: otherwise each result would need its own graph.
    """
    if q.is_cuda or torch.compiler.is_compiling():
        return True
    return q.size(2) >= 8 and (q.dtype == torch.float32 or k.size(2) >= 256)


def position_mask(length: int, device: torch.device, causal: bool, window: int) -> Tensor:
    """Return the mask (T, T) with which positions attend to themselves, to at most `window` earlier positions and,
    unless `causal`, to as many later ones (§4)."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    return mask.tril(0 if causal else window).triu(-window)


class StackedLinear(nn.Linear):
    """Several projections of the same input, computed in one product. `widths` are the output widths, in order."""

    def __init__(self, inputs: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__(inputs, sum(widths), bias)
        self.widths = widths


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the heads of x (…, T, H, K) to their positions (Su et al. 2021), in the precision of x. Elements i and K/2
    + i are a pair. `rotation` (T, K) contains the cosines of all angles, then the sines."""
    cos, sin = rotation.unsqueeze(-2).chunk(2, dim=-1)  # (T, 1, K/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention (§3.2.2). The rows of `qkv` are W_Q of all heads, then W_K, then W_V."""

    def __init__(self, config: TransformerConfig, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.window = config.heads, causal, config.attention_window
        self.dropout_rate = config.attention_dropout
        key_width, value_width = config.heads * config.key_size, config.heads * config.value_size
        self.widths = (key_width, key_width, value_width)
        self.sizes = Sizes(config.heads, config.key_size, config.value_size)
        self.qkv = StackedLinear(config.d_model, self.widths, config.bias)
        self.out = nn.Linear(value_width, config.d_model, config.bias)
        self.q_norm, self.k_norm = (
            RMSNorm(config.key_size, config.norm_epsilon) if config.qk_norm else None for _ in range(2)
        )

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Packing | None,
        record: list[Tensor] | None = None,
        rotation: Tensor | None = None,
    ) -> Tensor:
        """Apply self-attention to x (B, T, D), and return (B, T, D).

        `mask` (B, 1, 1, T) is False at padding, or None if there is none. With a packing instead, x and the result are
        (T, D). If `record` is given, the attention weights (B, H, T, T) are appended to it. For `rotation`, see
        `project`.
        """
        qkv = self.project(x, rotation)
        heads = self._attend_packed(qkv, mask) if isinstance(mask, Packing) else self._attend(qkv, mask, record)
        attended: Tensor = self.out(heads)
        return attended

    def project(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Compute queries, keys and values of x (…, T, D), side by side: (…, T, 2·H·K + H·V). `rotation` (T, K) rotates
        queries and keys, see `rotate`."""
        qkv: Tensor = self.qkv(x)
        if self.q_norm is None and rotation is None:
            return qkv
        q, k, v = torch.split(qkv, list(self.widths), dim=-1)
        q, k = normalize_heads(q, self.heads, self.q_norm), normalize_heads(k, self.heads, self.k_norm)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return torch.cat((q.flatten(-2), k.flatten(-2), v), dim=-1)

    def _attend_packed(self, qkv: Tensor, packing: Packing) -> Tensor:
        """Compute all heads (T, H·V) of packed sentences from their projections (T, 2·H·K + H·V)."""
        attention = packing.attention
        if attention is None:
            return attend_short((qkv,), self.sizes, self.causal, starts=(packing.starts[:-1],) * 2)
        if isinstance(attention, Padding):
            groups = zip(attention.pad(qkv), attention.masks, strict=True)
            return attention.pack(self._attend(x, None if self.causal else mask, None) for x, mask in groups)
        q, k, v = (x.view(len(x), self.heads, -1) for x in torch.split(qkv, list(self.widths), dim=-1))
        left = -1 if self.window is None else self.window
        return attend_packed(attention, q, k, v, packing, packing, (left, 0 if self.causal else left))

    def _attend(self, qkv: Tensor, mask: Tensor | None, record: list[Tensor] | None) -> Tensor:
        """Compute all heads side by side (B, T, H·V) from their projections (B, T, 2·H·K + H·V)."""
        rate = self.dropout_rate if self.training else 0.0
        plain = record is None and rate == 0.0 and self.window is None
        if plain and not (self.causal and mask is not None) and serves((qkv,), mask):
            return attend_short((qkv,), self.sizes, self.causal, mask)
        q, k, v = (split_heads(x, self.heads) for x in torch.split(qkv, list(self.widths), dim=-1))
        if self.window is not None and record is None and q.size(2) > 2 * self.window:
            heads = attend_blockwise(q, k, v, mask, self.window, self.causal, rate)
        elif self.causal and mask is None and self.window is None:
            heads = attend(q, k, v, None, rate, record, causal=True)
        else:
            heads = attend(q, k, v, self._within(q.size(2), q.device, mask), rate, record)
        return join_heads(heads)

    def _within(self, length: int, device: torch.device, mask: Tensor | None) -> Tensor | None:
        """Combine the padding mask (B, 1, 1, T) with the causal mask and the window."""
        if not self.causal and self.window is None:
            return mask
        allowed = position_mask(length, device, self.causal, length if self.window is None else self.window)
        # padding attends to itself, so that no row of the softmax is empty
        return allowed if mask is None else allowed & (mask | torch.eye(length, dtype=torch.bool, device=device))


class CrossAttention(nn.Module):
    """Multi-head attention from the decoder to the encoder's output (§3.2.3). The rows of `kv` are W_K, then W_V."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.dropout_rate = config.heads, config.attention_dropout
        key_width, value_width = config.heads * config.key_size, config.heads * config.value_size
        self.widths = (key_width, value_width)
        self.sizes = Sizes(config.heads, config.key_size, config.value_size)
        self.q = nn.Linear(config.d_model, key_width, config.bias)
        self.kv = StackedLinear(config.d_model, self.widths, config.bias)
        self.out = nn.Linear(value_width, config.d_model, config.bias)
        self.q_norm, self.k_norm = (
            RMSNorm(config.key_size, config.norm_epsilon) if config.qk_norm else None for _ in range(2)
        )

    def queries(self, x: Tensor) -> Tensor:
        """Project x (…, D) to the queries of all heads (…, H·K)."""
        return normalize_heads(self.q(x), self.heads, self.q_norm).flatten(-2)

    def project(self, memory: Tensor) -> Tensor:
        """Project the encoder's output (…, D) to keys and values, side by side: (…, H·K + H·V)."""
        kv: Tensor = self.kv(memory)
        if self.k_norm is None:
            return kv
        k, v = torch.split(kv, list(self.widths), dim=-1)
        return torch.cat((normalize_heads(k, self.heads, self.k_norm).flatten(-2), v), dim=-1)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's output (B, S, D) to keys (B, H, S, K) and values (B, H, S, V)."""
        k, v = torch.split(self.project(memory), list(self.widths), dim=-1)
        return split_heads(k, self.heads), split_heads(v, self.heads)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | Packing,
        record: list[Tensor] | None = None,
        target: Packing | None = None,
    ) -> Tensor:
        """Attend from x (B, T, D) to the encoder's output (B, S, D) with mask (B, 1, 1, S), and return (B, T, D).

        Packed sentences have a source packing as mask, and a target packing: x is (T, D), memory (S, D), result (T, D).
        """
        q, kv = self.queries(x), self.project(memory)
        if isinstance(mask, Packing):
            assert target is not None
            heads = self._attend_packed(q, kv, mask, target)
        else:
            heads = self._attend(q, kv, mask, record)
        attended: Tensor = self.out(heads)
        return attended

    def _attend_packed(self, q: Tensor, kv: Tensor, source: Packing, target: Packing) -> Tensor:
        """Compute all heads (T, H·V) of packed sentences from queries (T, H·K), keys and values (S, H·K + H·V)."""
        queries, keys = target.attention, source.attention
        if queries is None:
            return attend_short((q, kv), self.sizes, causal=False, starts=(target.starts[:-1], source.starts[:-1]))
        if isinstance(queries, Padding):
            assert isinstance(keys, Padding)
            groups = zip(queries.pad(q), keys.pad(kv), keys.masks, strict=True)
            return queries.pack(self._attend(*group, None) for group in groups)
        q, k, v = (x.view(len(x), self.heads, -1) for x in (q, *torch.split(kv, list(self.widths), dim=-1)))
        return attend_packed(queries, q, k, v, target, source)

    def _attend(self, q: Tensor, kv: Tensor, mask: Tensor, record: list[Tensor] | None) -> Tensor:
        """Compute all heads side by side (B, T, H·V) from queries (B, T, H·K), keys and values (B, S, H·K + H·V)."""
        rate = self.dropout_rate if self.training else 0.0
        if record is None and rate == 0.0 and serves((q, kv), mask):
            return attend_short((q, kv), self.sizes, causal=False, mask=mask)
        q, k, v = (split_heads(x, self.heads) for x in (q, *torch.split(kv, list(self.widths), dim=-1)))
        return join_heads(attend(q, k, v, mask, rate, record))


def normalize_heads(x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
    """Split (…, H·K) into heads, and normalize each if there is a norm: (…, H, K)."""
    split = x.view(*x.shape[:-1], heads, -1)
    return split if norm is None else norm(split)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, T, H·K) to (B, H, T, K)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Concatenate the heads of (B, H, T, V) to (B, T, H·V)."""
    return x.transpose(1, 2).flatten(2)


def attend_blockwise(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: int, causal: bool, dropout_rate: float
) -> Tensor:
    """Compute self-attention restricted to R = `window` neighbors on each side, in O(r·n·d) (§4).

    q and k are (B, H, T, K), v and the result (B, H, T, V), and mask (B, 1, 1, T). Each block of R queries is compared
    with 3 blocks of keys (2 if causal), never with the whole sequence.
    """
    B, H, T, K = q.shape
    R, device = window, q.device
    blocks = -(-T // R)
    after = 0 if causal else R  # keys after the block
    width = 2 * R + after  # keys for a block of queries
    keys = F.pad(k, (0, 0, R, blocks * R - T + after)).unfold(2, width, R)  # (B, H, blocks, K, width)
    values = F.pad(v, (0, 0, R, blocks * R - T + after)).unfold(2, width, R)  # (B, H, blocks, V, width)
    queries = F.pad(q, (0, 0, 0, blocks * R - T)).view(B, H, blocks, R, K)

    real = torch.ones(B, 1, 1, T, dtype=torch.bool, device=device) if mask is None else mask
    real = F.pad(real, (R, blocks * R - T + after)).unfold(3, width, R).transpose(2, 3)  # (B, 1, blocks, 1, width)
    offset = torch.arange(width, device=device) - R - torch.arange(R, device=device).unsqueeze(1)  # (R, width)
    near = (offset >= -R) & (offset <= (0 if causal else R))
    allowed = (near & real) | (offset == 0)  # padding attends to itself

    scores = (queries * q.size(-1) ** -0.5) @ keys  # (B, H, blocks, R, width)
    weights = torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1)
    heads = dropout(weights, dropout_rate) @ values.transpose(-2, -1)  # (B, H, blocks, R, V)
    return heads.flatten(2, 3)[:, :, :T]
