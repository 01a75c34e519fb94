"""Schedules by their formulas, Adam against torch's, and its state through a checkpoint."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from nmtkit.training.config import OptimizerConfig
from nmtkit.training.optim import Optimizers, learning_rate, load_optimizer, make_optimizer, optimizer_tensors


def rate(update: int, d_model: int = 512, max_updates: int = 1000, **options: Any) -> float:
    return learning_rate(update, OptimizerConfig(**options), d_model, max_updates)


def test_the_default_schedule_follows_the_formula_of_the_paper() -> None:
    for update, expected in (
        (1, 512**-0.5 * 4000**-1.5),
        (2000, 512**-0.5 * 2000 * 4000**-1.5),
        (4000, 512**-0.5 * 4000**-0.5),
        (16_000, 512**-0.5 * 16_000**-0.5),
        (100_000, 512**-0.5 * 100_000**-0.5),
    ):
        assert rate(update) == pytest.approx(expected, rel=1e-12)
    assert max(range(1, 20_000), key=rate) == 4000
    assert rate(7, lr_scale=2.0) == 2 * rate(7)
    assert rate(7, d_model=1024) == pytest.approx(rate(7) / math.sqrt(2))
    assert rate(10, warmup_updates=10) == pytest.approx(512**-0.5 * 10**-0.5)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "cosine", "constant", "wsd"])
def test_other_schedules_warm_up_linearly_to_their_peak(schedule: str) -> None:
    options: dict[str, Any] = {"lr_schedule": schedule, "lr": 0.01, "warmup_updates": 100}
    for update in (1, 50, 99, 100):
        assert rate(update, **options) == pytest.approx(0.01 * update / 100)
    rates = [rate(update, **options) for update in range(100, 1001)]
    assert max(rates) == rates[0]
    assert rates == sorted(rates, reverse=True)


def test_other_schedules_decay_by_the_formula_of_their_name() -> None:
    options: dict[str, Any] = {"lr": 0.01, "warmup_updates": 100, "max_updates": 1000}
    assert rate(400, lr_schedule="inverse-sqrt", **options) == pytest.approx(0.005)
    for update in (101, 550, 1000):
        left = (1001 - update) / 901
        assert rate(update, lr_schedule="linear", **options) == pytest.approx(0.01 * left)
        cosine = 0.005 * (1 + math.cos(math.pi * (1 - left)))
        assert rate(update, lr_schedule="cosine", **options) == pytest.approx(cosine)
    assert rate(999, lr_schedule="constant", **options) == 0.01


def test_wsd_is_constant_until_its_decay_which_ends_at_0_after_the_last_update() -> None:
    options: dict[str, Any] = {"lr_schedule": "wsd", "lr": 0.01, "warmup_updates": 100}
    assert {rate(update, **options) for update in range(100, 802)} == {0.01}
    for update in (802, 900, 1000):
        assert rate(update, **options) == pytest.approx(0.01 * (1001 - update) / 200)
    assert rate(991, decay_updates=10, **options) == 0.01
    assert rate(1000, decay_updates=10, **options) == pytest.approx(0.001)
    assert rate(1001, **options) == 0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(("warmup", "updates"), [(1, 1), (1, 2), (3, 3), (3, 4), (10, 1000)])
def test_the_last_update_of_a_falling_schedule_still_learns(schedule: str, warmup: int, updates: int) -> None:
    options: dict[str, Any] = {"lr_schedule": schedule, "lr": 0.01, "warmup_updates": warmup, "max_updates": updates}
    falling = [rate(update, **options) for update in range(warmup, updates + 1)]
    assert falling[0] == 0.01
    assert falling[-1] > 0
    assert all(after < before for before, after in itertools.pairwise(falling))
    assert rate(updates + 1, **options) == pytest.approx(0)


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def steps(model: nn.Module, optimizer: Optimizers, begin: int, end: int) -> None:
    for number in range(begin, end):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        model.zero_grad()
        torch.autograd.backward((model(x) ** 2).sum())
        for part in optimizer.parts:
            part.step()


@pytest.mark.parametrize(
    ("options", "betas", "eps"),
    [
        ({}, (0.9, 0.98), 1e-9),  # the paper's
        ({"adam_beta1": 0.5}, (0.5, 0.98), 1e-9),
        ({"adam_beta2": 0.8}, (0.9, 0.8), 1e-9),
        ({"adam_eps": 0.5}, (0.9, 0.98), 0.5),
    ],
)
def test_adam_equals_torch_adam_with_the_same_options(
    options: dict[str, Any], betas: tuple[float, float], eps: float
) -> None:
    ours, reference = make_model(), make_model()
    steps(ours, make_optimizer(ours, OptimizerConfig(lr=0.01, **options)), 0, 20)
    steps(reference, Optimizers(torch.optim.Adam(reference.parameters(), lr=0.01, betas=betas, eps=eps)), 0, 20)
    for parameter, expected in zip(ours.parameters(), reference.parameters(), strict=True):
        assert_close(parameter, expected, rtol=1e-5, atol=1e-7)


def test_weight_decay_is_decoupled() -> None:
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(model, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.parts[0].step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert_close(parameter.detach(), old * (1 - 0.1 * 0.5))


def test_an_optimizer_resumes_from_its_tensors_bit_for_bit() -> None:
    config = OptimizerConfig(lr=0.01)
    straight, first, second = make_model(), make_model(), make_model()
    steps(straight, make_optimizer(straight, config), 0, 10)
    optimizer = make_optimizer(first, config)
    steps(first, optimizer, 0, 4)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, first).items()}
    assert {name.partition(".")[0] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
    second.load_state_dict(first.state_dict())
    resumed = make_optimizer(second, config)
    load_optimizer(resumed, second, tensors.items())
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    steps(second, resumed, 4, 10)
    assert all(torch.equal(tensors[name], kept[name]) for name in kept)
    for parameter, expected in zip(second.parameters(), straight.parameters(), strict=True):
        assert torch.equal(parameter, expected)
