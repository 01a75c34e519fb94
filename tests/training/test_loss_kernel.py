"""The loss kernel for GPUs, run by Triton's interpreter on a CPU, against a reference in double precision."""

import importlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_gpu import GPU, fake_gpu
from reference_loss import smoothed_loss
from torch.testing import assert_close

if torch.cuda.is_available():
    pytest.skip("the interpreter must not replace the compiler of other tests", allow_module_level=True)
pytest.importorskip("triton")

from nmtkit.model.kernels import loss_kernel_on
from nmtkit.model.translation_model import mask_never_output
from nmtkit.text.vocabulary import EOS, NEVER_OUTPUT
from nmtkit.training import loss

KERNEL = "nmtkit.model.loss_kernel"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8}  # of a gradient of at most 1


@pytest.fixture
def kernel() -> Iterator[Any]:
    """The kernel's module, interpreted."""
    yield importlib.import_module(KERNEL)
    loss_kernel_on.cache_clear()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("width", [7, 64, 5000])  # less than a block, one, several
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_losses_and_gradient_match_the_reference(dtype: torch.dtype, width: int, smoothing: float, kernel: Any) -> None:
    logits, target = (torch.randn(4, width) * 3).to(dtype), torch.randint(EOS, width, (4,))
    exact = logits.double().requires_grad_()
    expected = smoothed_loss(exact, target, smoothing)
    (gradient,) = torch.autograd.grad(expected, exact)
    untouched = logits.clone()
    nll, uniform = kernel.cross_entropy_(untouched, target, smoothing, False)
    assert torch.equal(untouched, logits)
    assert_close(((1 - smoothing) * nll + smoothing * uniform).double(), expected.detach(), rtol=1e-5, atol=1e-4)
    assert_close(nll.double(), smoothed_loss(logits.double(), target, 0.0), rtol=1e-5, atol=1e-4)
    again = kernel.cross_entropy_(logits, target, smoothing, True)
    assert_close(again, torch.stack((nll, uniform)))
    assert_close(logits.double(), gradient, rtol=0, atol=TOLERANCE[dtype])
    assert not logits[:, list(NEVER_OUTPUT)].any()


def test_extreme_logits_neither_overflow_nor_vanish(kernel: Any) -> None:
    logits = torch.full((2, 6), -3e4)
    logits[:, EOS + 1] = torch.tensor([3e4, -3e4])
    losses = kernel.cross_entropy_(logits, torch.full((2,), EOS + 1), 0.0, True)
    assert losses[0].item() == pytest.approx(math.log(4), abs=1e-2)  # of 0 and log 4, as exact as 3e4 is in fp32
    assert logits.isfinite().all()


def test_a_nan_among_the_logits_makes_the_loss_nan(kernel: Any) -> None:
    logits = torch.randn(2, 50)
    logits[1, 20] = torch.nan
    assert kernel.cross_entropy_(logits, torch.full((2,), 7), 0.1, True).isnan().all()


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.float16])
def test_the_sum_of_exponentials_matches_the_reference(dtype: torch.dtype, kernel: Any) -> None:
    logits = mask_never_output((torch.randn(6, 5000) * 4).to(dtype))
    expected = logits.double().logsumexp(1, keepdim=True).float()
    assert_close(kernel.log_sum_exp(logits), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("width", [48, 50])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_loss_on_a_gpu_uses_the_kernel_with_the_same_result(
    bf16: bool, width: int, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, matrix, target = torch.randn(9, 16), torch.randn(width, 16), torch.randint(EOS, width, (9,))

    def compute(device: torch.device) -> tuple[torch.Tensor, ...]:
        inputs = hidden.to(device).requires_grad_(), matrix.to(device).requires_grad_()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            value, nll = loss.projected_cross_entropy(*inputs, target.to(device), 0.1)
        return value.detach(), nll, *torch.autograd.grad(value, inputs)

    expected = compute(torch.device("cpu"))
    calls: list[int] = []
    original = kernel.cross_entropy_

    def counted(logits: torch.Tensor, *inputs: Any) -> Any:
        calls.append(len(logits))
        assert logits.stride(0) % 8 == 0
        return original(logits, *inputs)

    monkeypatch.setattr(kernel, "cross_entropy_", counted)
    with fake_gpu(monkeypatch, bf16=bf16, loss_kernel=True):
        found = compute(GPU)
    assert calls == [1, 9]  # a trial, then all rows
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=2e-2 if bf16 else 1e-5, atol=5e-2 if bf16 else 1e-5)


def test_without_a_working_kernel_torch_computes_the_loss(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*inputs: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernel, "cross_entropy_", failing)
    assert loss_kernel_on(GPU) is None
