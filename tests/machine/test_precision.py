"""Settings of torch that a GPU needs."""

import os

import pytest
import torch
from fake_gpu import fake_gpu

from nmtkit.machine import precision
from nmtkit.machine.precision import resolve_device


@pytest.mark.parametrize("name", ["auto", "cuda:0"])
def test_a_gpu_gets_no_cudnn_attention_exact_sums_and_segments_that_grow(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", chosen.append)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    with fake_gpu(monkeypatch):
        assert resolve_device(name).type == "cuda"
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert chosen == [False]
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_users_settings_of_the_allocator_are_kept(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu(monkeypatch):
        monkeypatch.setenv(variable, "max_split_size_mb:128")
        resolve_device("cuda")
        assert [os.environ[name] for name in os.environ if name.endswith("_ALLOC_CONF")] == ["max_split_size_mb:128"]


def test_a_cpu_gets_no_settings_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "prepare_gpu", lambda: pytest.fail("it gets them"))
    for name in ("auto", "cpu"):
        assert resolve_device(name).type == "cpu"
