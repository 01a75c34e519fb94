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


def test_neighbours_are_dropped_independently_and_whatever_the_memory_order() -> None:
    torch.manual_seed(1)
    kept = dropout(torch.ones(400_000), 0.5) != 0
    for distance in (1, 2, 3, 4, 8):  # four masks come from one draw
        assert (kept[:-distance] & kept[distance:]).double().mean().item() == pytest.approx(0.25, abs=0.005)
    torch.manual_seed(1)
    assert torch.equal(dropout(torch.ones(1000, 400).t().contiguous().t(), 0.5) != 0, kept.view(1000, 400))


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


def test_a_rate_that_rounds_to_one_drops_almost_everything() -> None:
    assert (dropout(torch.ones(10_000, dtype=torch.float64), 0.999999) != 0).sum() < 10
