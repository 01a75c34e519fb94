"""RMSNorm, SwiGLU, rotary positions and normalized queries and keys, against a plain implementation of the formulas."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from prefix_models import with_lengths
from small_transformers import D, make, sentences
from torch import Tensor
from torch.testing import assert_close

from nmtkit.model.attention import rotate
from nmtkit.model.presets import PRESETS
from nmtkit.model.sinusoids import sinusoid_table
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import PAD

MODERN: dict[str, Any] = {"norm_type": "rms", "activation": "swiglu", "positions": "rotary"}
CHANGES: list[dict[str, Any]] = [
    *({name: value} for name, value in MODERN.items()),
    {"qk_norm": True},
    {"bias": False},
    MODERN | {"norm": "pre", "bias": False},
    MODERN | {"norm": "pre", "bias": False, "qk_norm": True, "share_embeddings": "none"},
    MODERN | {"qk_norm": True, "d_k": 6, "d_v": 5},
]


class Plain:
    """A Transformer for one sentence pair, position by position and head by head, with the weights of a model."""

    def __init__(self, model: Transformer) -> None:
        self.config, self.weights = model.config, dict(model.named_parameters())

    def linear(self, x: Tensor, name: str) -> Tensor:
        y: Tensor = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if self.config.bias else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        if self.config.norm_type == "rms":
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.weights[f"{name}.weight"]
        centered = x - x.mean(-1, keepdim=True)
        y = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.weights[f"{name}.weight"]
        return y + self.weights[f"{name}.bias"] if self.config.bias else y

    def head(self, x: Tensor, name: str, rotated: bool) -> Tensor:
        """Queries or keys (T, K) of a head before their products."""
        K = x.size(-1)
        if self.config.qk_norm:
            x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weights[f"{name}.weight"]
        if rotated and self.config.positions == "rotary":
            pairs = torch.complex(x[:, : K // 2], x[:, K // 2 :])
            angles = torch.tensor([[t / 10000 ** (2 * i / K) for i in range(K // 2)] for t in range(len(x))])
            pairs = pairs * torch.exp(1j * angles.double())
            x = torch.cat((pairs.real, pairs.imag), dim=-1)
        return x

    def attention(self, x: Tensor, name: str, memory: Tensor | None = None) -> Tensor:
        config, is_self = self.config, memory is None
        keys, values = config.heads * config.key_size, config.heads * config.value_size
        if memory is None:
            q, k, v = torch.split(self.linear(x, f"{name}.qkv"), [keys, keys, values], dim=-1)
        else:
            q = self.linear(x, f"{name}.q")
            k, v = torch.split(self.linear(memory, f"{name}.kv"), [keys, values], dim=-1)
        heads = []
        for h in range(config.heads):
            qh, kh = (each[:, h * config.key_size : (h + 1) * config.key_size] for each in (q, k))
            qh, kh = self.head(qh, f"{name}.q_norm", is_self), self.head(kh, f"{name}.k_norm", is_self)
            scores = qh @ kh.T / config.key_size**0.5
            if name.startswith("decoder") and is_self:
                scores = scores + torch.full_like(scores, -torch.inf).triu(1)
            heads.append(scores.softmax(-1) @ v[:, h * config.value_size : (h + 1) * config.value_size])
        return self.linear(torch.cat(heads, dim=-1), f"{name}.out")

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        inner = self.linear(x, f"{name}.inner")
        if self.config.activation == "swiglu":
            gate, gated = inner.chunk(2, dim=-1)
            inner = gate * torch.sigmoid(gate) * gated
        else:
            inner = inner.clamp(min=0)
        return self.linear(inner, f"{name}.outer")

    def around(self, x: Tensor, name: str, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.config.norm == "pre":
            return x + sublayer(self.norm(x, f"{name}.norm"))
        return self.norm(x + sublayer(x), f"{name}.norm")

    def embed(self, ids: Tensor, table: str) -> Tensor:
        x: Tensor = self.weights.get(f"{table}.weight", self.weights["target_embedding.weight"])[ids] * D**0.5
        if self.config.positions == "sinusoidal":
            x = x + torch.from_numpy(sinusoid_table(len(ids), D)).double()
        return x

    def logits(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        memory, x = self.embed(src, "source_embedding"), self.embed(tgt_in, "target_embedding")
        for number in range(2):
            layer = f"encoder.{number}"
            attend = partial(self.attention, name=f"{layer}.self_attention")
            memory = self.around(memory, f"{layer}.around_self_attention", attend)
            feed = partial(self.feed_forward, name=f"{layer}.feed_forward")
            memory = self.around(memory, f"{layer}.around_feed_forward", feed)
        memory = self.norm(memory, "encoder_norm") if self.config.norm == "pre" else memory
        for number in range(2):
            layer = f"decoder.{number}"
            attend = partial(self.attention, name=f"{layer}.self_attention")
            x = self.around(x, f"{layer}.around_self_attention", attend)
            cross = partial(self.attention, memory=memory, name=f"{layer}.cross_attention")
            x = self.around(x, f"{layer}.around_cross_attention", cross)
            x = self.around(x, f"{layer}.around_feed_forward", partial(self.feed_forward, name=f"{layer}.feed_forward"))
        x = self.norm(x, "decoder_norm") if self.config.norm == "pre" else x
        logits: Tensor = x @ self.weights.get("projection.weight", self.weights["target_embedding.weight"]).T
        return logits


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(map(str, changes.values())))
def test_values_and_gradients_are_those_of_the_formulas(changes: dict[str, Any]) -> None:
    model = make(**changes).train()
    src, tgt_in = sentences(7, 4), sentences(5, 6, seed=1)
    plain = Plain(model)
    pairs = [(src[row][src[row] != PAD], tgt_in[row][tgt_in[row] != PAD]) for row in range(2)]
    expected = torch.cat([plain.logits(*pair)[:, 4:].log_softmax(-1) for pair in pairs])
    found = model(*with_lengths(src), tgt_in)[..., 4:].log_softmax(-1)
    found = torch.cat([found[row, : len(pair[1])] for row, pair in enumerate(pairs)])
    assert_close(found, expected, rtol=0, atol=1e-6)  # the tables of positions are in float32
    parameters = list(model.parameters())
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gradients = [torch.autograd.grad((each * weights).sum(), parameters) for each in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_product_of_rotated_vectors_depends_only_on_the_distance_of_their_positions() -> None:
    q, k = torch.randn(2, 1, 1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table = torch.from_numpy(sinusoid_table(40, 6, "rotary")).double()
    products = [(rotate(q, table[t : t + 1]) * rotate(k, table[t + 5 : t + 6])).sum() for t in (0, 1, 30)]
    assert_close(products[1], products[0], rtol=1e-5, atol=0)
    assert_close(products[2], products[0], rtol=1e-5, atol=0)


def test_a_model_without_biases_has_none() -> None:
    assert not [name for name, _ in make(bias=False, norm="pre").named_parameters() if "bias" in name]


@pytest.mark.parametrize("size", ["", "_small", "_tiny"])
def test_the_modern_presets_have_the_flops_of_the_paper_s_model_of_their_size(size: str) -> None:
    lengths = np.full(1000, 27)
    modern, paper = (
        PRESETS[name].model_config().forward_flops(8000, lengths, lengths)
        for name in (f"transformer_modern{size}", f"transformer{size or '_base'}")
    )
    assert modern == pytest.approx(paper, rel=0.03)


def test_a_model_learns_from_sentences_after_validation_has_seen_longer_ones() -> None:
    model = make(positions="rotary")
    long, short = torch.full((1, 40), 5), torch.full((1, 4), 5)
    with torch.inference_mode():
        model(long, torch.tensor([40]), long)
    model(short, torch.tensor([4]), short).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
