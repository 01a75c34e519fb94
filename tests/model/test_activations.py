"""The precision of a Transformer's activations, and what bf16 costs in accuracy."""

import copy
import math
from typing import Any
from unittest import mock

import pytest
import torch
from fake_gpu import CPU, GPU, fake_gpu
from native_builds import BUILDS, use_build, use_torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmtkit.data.batch import Batch
from nmtkit.machine.precision import autocast
from nmtkit.model import transformer
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.residual import LayerNorm
from nmtkit.model.translation_model import TranslationModel
from nmtkit.training.loss import MicroBatchLoss


def small_model(layers: int, **options: Any) -> TranslationModel:
    torch.manual_seed(1)
    config = TransformerConfig(
        encoder_layers=layers, decoder_layers=layers, d_model=64, d_ff=128, heads=4, dropout=0.0, **options
    )
    return make_model(config, 100, 100).train()


def gradients(model: TranslationModel, device: torch.device, precision: torch.dtype) -> dict[str, Tensor]:
    """The gradient of the loss of a random batch, by parameter."""
    random = torch.Generator().manual_seed(2)
    src, tgt = (torch.randint(4, 100, (8, length), generator=random) for length in (24, 22))
    model.zero_grad(set_to_none=True)
    with autocast(device, precision):
        loss, _ = MicroBatchLoss(model, smoothing=0.1)(Batch.unpadded(src, tgt, tgt).to(device))
    torch.autograd.backward(loss)
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def error_of(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The relative distance of a gradient from that in float64."""
    pairs = [(found[name].double(), gradient) for name, gradient in exact.items()]
    return math.sqrt(sum((x - y).square().sum() for x, y in pairs) / sum(y.square().sum() for _, y in pairs))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        (GPU, torch.bfloat16, torch.bfloat16),
        (GPU, torch.float16, torch.float32),
        (GPU, torch.float32, torch.float32),
        (CPU, torch.bfloat16, torch.bfloat16),
        (CPU, torch.float16, torch.float32),
        (CPU, torch.float32, torch.float32),
    ],
    ids=["GPU bf16", "GPU fp16", "GPU fp32", "CPU bf16", "CPU fp16", "CPU fp32"],
)
def test_activations_between_sub_layers_are_in_bf16_only_with_that_precision_and_gradients_always_in_fp32(
    device: torch.device, precision: torch.dtype, expected: torch.dtype, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: set[torch.dtype] = set()

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found.update((inputs[0].dtype, output.dtype))

    model = small_model(1, norm=norm)
    with fake_gpu(monkeypatch, bf16=True):
        model.to(device)
        for layer in model.layers():
            layer.register_forward_hook(note)
        assert {gradient.dtype for gradient in gradients(model, device, precision).values()} == {torch.float32}
    assert found == {expected}


@pytest.mark.parametrize("build", [*BUILDS, None])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_compiled_or_not_bf16_on_a_cpu_has_at_most_double_the_error_of_autocast(
    norm: str, build: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(6, norm=norm)
    exact = gradients(copy.deepcopy(model).double(), CPU, torch.float32)
    use_torch(monkeypatch)
    with mock.patch.object(transformer, "as_activations", lambda x: x):
        of_autocast = error_of(gradients(model, CPU, torch.bfloat16), exact)
    if build is not None:
        use_build(build, monkeypatch)
    error = error_of(gradients(model, CPU, torch.bfloat16), exact)
    assert 0.0 < of_autocast < 0.1
    assert error < 2.0 * of_autocast


def test_the_layer_norm_of_bf16_has_statistics_in_fp32() -> None:
    norm, x = LayerNorm(512), (100.0 + torch.randn(3, 512)).bfloat16()
    exact = F.layer_norm(x.double(), (512,)).float()
    assert_close(norm(x), exact.bfloat16(), atol=0.0, rtol=2**-7)  # one unit in the last place
