"""Settings of torch that a GPU needs."""

import os

import pytest
import torch
from fake_gpu import fake_gpu

from nmtkit.machine.precision import resolve_device


@pytest.mark.parametrize("name", ["auto", "cuda:0"])
def test_a_gpu_gets_no_cudnn_attention_no_tf32_and_segments_that_grow(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", chosen.append)
    with fake_gpu(monkeypatch):
        assert resolve_device(name).type == "cuda"
        assert not torch.backends.cudnn.allow_tf32
    assert chosen == [False]
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
