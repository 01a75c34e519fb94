"""Dropout from random bits: rate, scale, determinism, gradient."""

import math

import pytest
import torch
from torch.testing import assert_close

from nmtkit.model.dropout import Dropout, dropout


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_elements_are_dropped_at_the_given_rate_and_the_others_scaled(rate: float) -> None:
    torch.manual_seed(1)
    x = torch.full((500, 401), 2.0)
    y = dropout(x, rate)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / x.numel())
    assert_close(y[y != 0], torch.full_like(y[y != 0], 2 / (1 - rate)))
    assert y.mean().item() == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("shape", [(1,), (2, 3, 5), (0, 4)])
def test_dropout_keeps_any_shape_and_dtype(shape: tuple[int, ...]) -> None:
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        y = dropout(torch.ones(shape, dtype=kind), 0.5)
        assert (y.shape, y.dtype) == (shape, kind)


def test_the_mask_is_a_function_of_the_seed() -> None:
    x = torch.randn(100)
    torch.manual_seed(7)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_the_gradient_goes_through_the_same_mask() -> None:
    x = torch.randn(1000, requires_grad=True)
    y = dropout(x, 0.3)
    downstream = torch.randn(1000)
    (gradient,) = torch.autograd.grad(y, x, downstream)
    assert_close(gradient, torch.where(y == 0, 0.0, downstream / 0.7))


def test_rate_zero_and_evaluation_change_nothing() -> None:
    x = torch.randn(10)
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
