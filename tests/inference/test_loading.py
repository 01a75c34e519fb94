"""The backend and the number format that a checkpoint is loaded with."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from fake_gpu import fake_gpu

from nmtkit.checkpoint import Checkpoint
from nmtkit.errors import UserError
from nmtkit.inference.loading import load_model, load_models
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.torch_backend import TorchBackend
from nmtkit.machine import native_build
from nmtkit.machine.device import inference_precision

MakeCheckpoint = Callable[..., Checkpoint]
CPU, CUDA = "cpu", "cuda"
compiled = pytest.mark.skipif(not native_build.available("fp32"), reason="the search is not compiled")


@pytest.mark.parametrize("bf16", [False, True])
def test_auto_precision_is_fp32_on_a_cpu_and_bf16_on_a_gpu_that_supports_it(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": bf16}, raising=False)
    assert inference_precision("auto", CPU) == "fp32"
    assert inference_precision("auto", CUDA) == ("bf16" if bf16 else "fp32")


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_an_explicit_precision_is_used(name: str) -> None:
    assert inference_precision(name, CPU) == inference_precision(name, CUDA) == name


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("fp16", CPU, "--precision fp16 is for GPUs: on a CPU use fp32, or int8"),
        ("int8", CUDA, "--precision int8 is for CPUs, not for cuda: use bf16 or fp16"),
    ],
)
def test_a_precision_that_the_device_does_not_support_is_refused(name: str, device: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        inference_precision(name, device)


@compiled
@pytest.mark.parametrize(("precision", "faster"), [("auto", "int8"), ("fp32", "int8"), ("int8", None)])
def test_a_cpu_uses_the_compiled_search_and_suggests_int8_if_it_is_faster(
    precision: str, faster: str | None, make_checkpoint: MakeCheckpoint
) -> None:
    model = load_model(make_checkpoint(), "cpu", precision)
    assert isinstance(model, NativeTransformer)
    assert model.precision == f"{precision.replace('auto', 'fp32')}, {native_build.isa()}"
    assert model.faster_precision == faster
    assert load_models([make_checkpoint(1), make_checkpoint(2)], "cpu", precision).faster_precision == faster


@pytest.mark.parametrize(("precision", "window"), [("fp32", 2), ("bf16", None)])
def test_torch_searches_if_the_compiled_search_does_not_support_the_model(
    precision: str, window: int | None, make_checkpoint: MakeCheckpoint
) -> None:
    model = load_model(make_checkpoint(attention_window=window), "cpu", precision)
    assert isinstance(model, TorchBackend)
    assert model.precision == precision
    assert model.faster_precision is None


def test_without_the_compiled_search_fp32_uses_torch_and_int8_is_refused(
    make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_build, "native", None)
    model = load_model(make_checkpoint(), "cpu", "auto")
    assert isinstance(model, TorchBackend)
    assert model.precision == "fp32, not compiled"
    with pytest.raises(UserError, match="int8 needs the compiled search: use fp32, or install nmtkit"):
        load_model(make_checkpoint(), "cpu", "int8")


def test_a_model_that_the_compiled_search_does_not_have_is_not_called_not_compiled(
    make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_build, "native", None)
    assert load_model(make_checkpoint(attention_window=2), "cpu", "fp32").precision == "fp32"


def test_the_portable_build_is_for_int8_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "native", ModuleType("nmtkit._native_scalar"))
    assert [native_build.available(each) for each in ("fp32", "int8")] == [False, True]


@pytest.mark.parametrize(("cpu", "missing"), [("AVX512", True), ("AVX2", True), ("DEFAULT", False)])
def test_a_fast_build_is_missing_if_a_capable_cpu_uses_the_portable_one(
    cpu: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_build, "native", ModuleType("nmtkit._native_scalar"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: cpu)
    assert native_build.is_missing() is missing


def test_torch_searches_on_a_gpu(make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make_checkpoint()
    with fake_gpu(monkeypatch):
        model = load_model(checkpoint, "cuda", "auto")
        assert isinstance(model, TorchBackend)
        assert (model.device, model.precision) == ("cuda:0", "fp32")
