"""Muon and schedule-free Adam against plain implementations, and runs with each recipe beside the paper's."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Train
from small_transformers import W, make, sentences
from torch import Tensor, nn
from torch.testing import assert_close
from training_runs import OPTIONS, TRAIN, assert_near, finish, metrics, start, tensors, updates

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.batch import Batch
from nmtkit.errors import UserError
from nmtkit.model.transformer import Transformer
from nmtkit.training.config import OptimizerConfig
from nmtkit.training.ema import ScheduleFreeAverage
from nmtkit.training.loss import MicroBatchLoss, symmetric_divergence
from nmtkit.training.optim import load_optimizer, make_optimizer, optimizer_tensors, schedule_free_sums, take_step

SCALER = torch.amp.GradScaler("cpu", enabled=False)
SCHEDULE_FREE: dict[str, Any] = {"optimizer": "schedule-free", "lr_schedule": "constant"}


def small(**changes: Any) -> Transformer:
    return make(encoder_layers=1, decoder_layers=1, **changes).float()


def gradients(model: nn.Module, number: int) -> dict[str, Tensor]:
    """Random gradients of a step, set on the model."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# Muon -----------------------------------------------------------------------------------------------------------

BLOCKS = {"self_attention.qkv": 3, "cross_attention.kv": 2, "feed_forward.inner": 2}


def orthogonalized(matrix: Tensor) -> Tensor:
    """Five iterations of Newton and Schulz, with the singular values of the matrix instead of its products."""
    u, s, v = torch.linalg.svd(matrix.double() / matrix.double().norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    result: Tensor = u @ torch.diag(s) @ v
    return result


@pytest.mark.parametrize(("products", "tolerance"), [(torch.bfloat16, 2e-3), (torch.float32, 1e-5)])
def test_muon_orthogonalizes_the_momentum_of_each_projection_and_adam_trains_the_rest(
    products: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.training.optim.resolve_precision", lambda name, device: products)
    model = small(activation="swiglu", norm_type="rms", bias=False, share_embeddings="none")
    optimizer = make_optimizer(model, OptimizerConfig(optimizer="muon", weight_decay=0.1))
    expected, momentum = weights(model), {name: torch.zeros_like(each) for name, each in weights(model).items()}
    rest = {name: nn.Parameter(each.clone()) for name, each in expected.items() if not is_hidden(name)}
    adam = torch.optim.AdamW(rest.values(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    for number in range(3):
        of_step = gradients(model, number)
        take_step(model, optimizer, SCALER, 0.01)
        for name, gradient in of_step.items():
            if not is_hidden(name):
                rest[name].grad = gradient
                continue
            momentum[name] = 0.95 * momentum[name] + 0.05 * gradient
            update = 0.05 * gradient + 0.95 * momentum[name]
            count = next((count for part, count in BLOCKS.items() if part in name), 1)
            blocks = [orthogonalized(part) * 0.2 * math.sqrt(max(part.shape)) for part in update.chunk(count)]
            expected[name] = expected[name] * (1 - 0.01 * 0.1) - 0.01 * torch.cat(blocks).float()
        adam.step()
    found = weights(model)
    for name, weight in expected.items():
        if is_hidden(name):
            assert_close(found[name], weight, rtol=0, atol=tolerance)
            assert (found[name] - weight).norm() < 0.03 * 0.03 * weight.numel() ** 0.5
        else:
            assert_close(found[name], rest[name].detach(), rtol=1e-5, atol=1e-6)


def is_hidden(name: str) -> bool:
    return name.startswith(("encoder.", "decoder.")) and "norm" not in name


# Schedule-free Adam ---------------------------------------------------------------------------------------------


def test_the_saved_average_of_schedule_free_adam_is_that_of_its_iterates() -> None:
    pytest.importorskip("schedulefree")
    model = small()
    optimizer = make_optimizer(model, OptimizerConfig(**SCHEDULE_FREE, adam_eps=1e-6))
    average = ScheduleFreeAverage(model, optimizer.parts[0])
    x, z, total, highest = weights(model), weights(model), 0.0, 0.0
    second = {name: torch.zeros_like(each) for name, each in x.items()}
    for number, rate in enumerate((0.001, 0.01, 0.01, 0.005), 1):
        of_step = gradients(model, number)
        take_step(model, optimizer, SCALER, rate)
        average.step(number, torch.tensor(True))
        highest = max(highest, rate)
        total += highest**2
        for name, gradient in of_step.items():  # algorithm 1 of Defazio et al. 2024
            second[name] = 0.98 * second[name] + 0.02 * gradient**2
            z[name] = z[name] - rate * gradient / ((second[name] / (1 - 0.98**number)).sqrt() + 1e-6)
            x[name] = x[name] + highest**2 / total * (z[name] - x[name])
        for name, weight in weights(model).items():
            assert_close(weight, 0.1 * z[name] + 0.9 * x[name], rtol=1e-4, atol=1e-5)
            assert_close(average.averages[name], x[name], rtol=1e-4, atol=1e-5)


def test_schedule_free_adam_refuses_what_it_replaces() -> None:
    for options, words in (({"lr_schedule": "paper"}, "--lr-schedule constant"), ({"ema": 0.9}, "--ema")):
        with pytest.raises(UserError, match=words):
            OptimizerConfig(**(SCHEDULE_FREE | options))


# All of them ----------------------------------------------------------------------------------------------------

OPTIMIZERS: list[dict[str, Any]] = [{"optimizer": "adam"}, {"optimizer": "muon"}, SCHEDULE_FREE]
every_optimizer = pytest.mark.parametrize("options", OPTIMIZERS, ids=lambda options: str(options["optimizer"]))


def skip_without_package(options: Iterable[object]) -> None:
    if "schedule-free" in [str(option) for option in options]:
        pytest.importorskip("schedulefree")


@every_optimizer
def test_a_step_without_a_finite_gradient_changes_nothing(options: dict[str, Any]) -> None:
    skip_without_package(options.values())
    model = small()
    optimizer = make_optimizer(model, OptimizerConfig(**options))
    for number, damaged in enumerate((False, True)):
        gradients(model, number)
        if damaged:
            next(model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
        sums, state = schedule_free_sums(optimizer), weights(model) | optimizer_tensors(optimizer, model)
        before = {name: tensor.clone() for name, tensor in state.items()}
        take_step(model, optimizer, SCALER, 0.01)
    after = weights(model) | optimizer_tensors(optimizer, model)
    assert sums == schedule_free_sums(optimizer)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@every_optimizer
def test_the_state_of_another_optimizer_is_not_used(options: dict[str, Any]) -> None:
    skip_without_package(options.values())
    model = small()
    for other in OPTIMIZERS:
        if other is options or (other is SCHEDULE_FREE and options["optimizer"] == "adam"):
            continue
        first = make_optimizer(model, OptimizerConfig(**options))
        gradients(model, 1)
        take_step(model, first, SCALER, 0.01)
        if other is SCHEDULE_FREE:
            skip_without_package(other.values())
        second = make_optimizer(model, OptimizerConfig(**other))
        load_optimizer(second, model, optimizer_tensors(first, model).items())
        gradients(model, 2)
        take_step(model, second, SCALER, 0.01)  # a state of the wrong kind would raise KeyError


RECIPES: list[tuple[object, ...]] = [
    ("--arch", "transformer_modern_tiny", "--qk-norm"),
    ("--optimizer", "muon", "--lr-schedule", "wsd", "--warmup-updates", 2, "--decay-updates", 3),
    ("--optimizer", "schedule-free", "--lr-schedule", "constant", "--warmup-updates", 2),
    ("--r-drop", 5.0),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe[1]))


@every_recipe
def test_a_resumed_run_ends_with_the_tensors_of_an_uninterrupted_one(
    recipe: tuple[object, ...], train: Train, tmp_path: Path
) -> None:
    skip_without_package(recipe)
    each = ("--max-updates", 9, *recipe)
    train(tmp_path / "straight", *each)
    for minutes in (1e-9, 1.0):
        train(tmp_path / "stopped", *each, "--max-minutes", minutes)
    assert updates(tmp_path / "stopped")[0] == 1
    first, second = tensors(tmp_path / "straight"), tensors(tmp_path / "stopped")
    assert first.keys() == second.keys()
    assert all(np.array_equal(tensor, second[name]) for name, tensor in first.items())
    ours, theirs = (load_checkpoint(tmp_path / name / "checkpoint_last.pt").ema for name in ("straight", "stopped"))
    assert (ours is None) == (theirs is None) == ("schedule-free" not in recipe)
    assert all(np.array_equal(average, (theirs or {})[name]) for name, average in (ours or {}).items())


@pytest.mark.slow
@every_recipe
def test_two_ranks_train_the_model_of_one(
    recipe: tuple[object, ...], datasets: dict[str, Path], tmp_path: Path
) -> None:
    skip_without_package(recipe)
    for ranks in (1, 2):
        options = ("--save-dir", tmp_path / str(ranks), *OPTIONS, "--max-updates", 10, *recipe)
        finish(start(ranks, TRAIN, datasets["joined"], *options))
    assert_near(tmp_path / "1", tmp_path / "2")


# R-Drop ---------------------------------------------------------------------------------------------------------


def test_the_divergence_and_its_gradients_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(n, 6, dtype=torch.float64, generator=generator).requires_grad_() for n in (700, 700, W)]
    a, b, matrix = inputs
    possible = [number for number in range(W) if number not in (0, 2)]
    p, q = ((each @ matrix.T)[:, possible].log_softmax(-1) for each in (a, b))
    kl = nn.functional.kl_div
    expected = kl(q, p, reduction="sum", log_target=True) + kl(p, q, reduction="sum", log_target=True)
    found = symmetric_divergence(a, b, matrix)
    assert_close(found.double(), expected, rtol=1e-5, atol=0)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"output_bias": True}], ids=str)
def test_r_drop_adds_half_its_weight_times_the_divergence_of_two_masks_to_the_mean_of_their_losses(
    changes: dict[str, Any],
) -> None:
    model = small(dropout=0.3, **changes).train()
    tgt = sentences(5, 3, seed=2)
    batch = Batch.unpadded(sentences(6, 6), tgt[:1].expand(2, -1), tgt[:1].expand(2, -1))
    torch.manual_seed(5)
    loss, nll = MicroBatchLoss(model, 0.1, r_drop=5.0)(batch)
    torch.manual_seed(5)
    hidden, losses = [], []
    for _ in range(2):
        state = torch.get_rng_state()
        losses.append(MicroBatchLoss(model, 0.1)(batch))
        torch.set_rng_state(state)
        hidden.append(model.decode(batch.tgt_in, model.encode(batch.src, batch.source_lengths)).flatten(0, 1))
    p, q = (model.project(each).index_select(1, torch.tensor([1, *range(3, W)])).log_softmax(-1) for each in hidden)
    kl = nn.functional.kl_div
    divergence = kl(q, p, reduction="sum", log_target=True) + kl(p, q, reduction="sum", log_target=True)
    assert divergence > 0.1
    assert_close(loss, (losses[0][0] + losses[1][0]) / 2 + 5.0 / 4 * divergence, rtol=1e-4, atol=1e-4)
    assert_close(nll, (losses[0][1] + losses[1][1]) / 2)


def test_the_second_pass_of_r_drop_counts_as_operations(train: Train, tmp_path: Path) -> None:
    for name, options in (("plain", ()), ("r_drop", ("--r-drop", 1.0))):
        train(tmp_path / name, "--max-updates", 2, "--log-every", 1, *options)
    plain, twice = (metrics(tmp_path / name, "train")[-1] for name in ("plain", "r_drop"))
    assert twice["tflop"] == 2 * plain["tflop"]
