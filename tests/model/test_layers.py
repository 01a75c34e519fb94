"""Dropout within the layers."""

import pytest
import torch
from small_transformers import FF, D, H
from torch.testing import assert_close

from nmtkit.model.config import TransformerConfig
from nmtkit.model.layers import FeedForward, Residual


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
