"""Layers against torch's own with the same weights, before and after the norm is moved."""

from typing import Any

import pytest
import torch
from small_transformers import FF, D, H
from torch import Tensor, nn
from torch.testing import assert_close
from torch_copies import copy_decoder_layer, copy_encoder_layer, torch_layer

from nmtkit.model.config import TransformerConfig
from nmtkit.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual

REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])  # (B, S)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind: type[nn.Module], norm: str) -> Any:
    """A layer in float64 with every parameter drawn; LayerNorm's gains around 1."""
    torch.manual_seed(2)
    layer = kind(TransformerConfig(d_model=D, d_ff=FF, heads=H, dropout=0.0, norm=norm)).double()
    for name, parameter in layer.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.4)
    return layer


def future(length: int) -> Tensor:
    """torch's sense of a mask: True where attention is forbidden."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_layer_equals_torch(norm: str) -> None:
    ours = make(EncoderLayer, norm)
    reference = torch_layer(nn.TransformerEncoderLayer, norm)
    copy_encoder_layer(reference, ours)
    x = draw(2, 6, D).requires_grad_()
    actual, expected = ours(x, REAL[:, None, None, :]), reference(x, src_key_padding_mask=~REAL)
    assert_close(actual[REAL], expected[REAL])
    assert_close(*(torch.autograd.grad((y[REAL] ** 2).sum(), x) for y in (actual, expected)))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_decoder_layer_equals_torch(norm: str) -> None:
    ours = make(DecoderLayer, norm)
    reference = torch_layer(nn.TransformerDecoderLayer, norm)
    copy_decoder_layer(reference, ours)
    x, memory = draw(2, 5, D, seed=1).requires_grad_(), draw(2, 6, D, seed=2).requires_grad_()
    actual = ours(x, memory, REAL[:, None, None, :])
    expected = reference(x, memory, tgt_mask=future(5), memory_key_padding_mask=~REAL)
    assert_close(actual, expected)
    assert_close(*(torch.autograd.grad((y**2).sum(), (x, memory)) for y in (actual, expected)))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_acts_on_the_sublayer_before_the_residual_sum(norm: str) -> None:
    residual = Residual(TransformerConfig(d_model=D, heads=H, dropout=0.5, norm=norm)).double()
    sums = []  # of x and the sub-layer's output, before a norm if one follows
    residual.norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    x = torch.zeros(4, 100, D, dtype=torch.float64)
    torch.manual_seed(1)
    for before, sublayer, expected in ((0.0, 1.0, {0.0, 2.0}), (1.0, 0.0, {1.0})):
        y = residual(x + before, lambda _, value=sublayer: torch.full_like(x, value))
        assert set((y if norm == "pre" else sums[-1]).unique().tolist()) == expected
    residual.eval()
    y = residual(x, lambda _: torch.ones_like(x))
    assert ((y if norm == "pre" else sums[-1]) == 1).all()


def test_activation_dropout_acts_inside_the_feed_forward_network() -> None:
    feed_forward = FeedForward(TransformerConfig(d_model=D, d_ff=FF, heads=H, activation_dropout=0.5))
    x = torch.randn(2, 3, D)
    torch.manual_seed(1)
    assert not torch.equal(feed_forward(x), feed_forward(x))
    feed_forward.eval()
    assert_close(feed_forward(x), feed_forward.outer(feed_forward.inner(x).clamp(min=0)))
