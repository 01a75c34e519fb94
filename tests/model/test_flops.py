"""The count of floating-point operations against torch's own counter, and against the paper's figures."""

from typing import Any

import numpy as np
import pytest
import torch
from native_builds import use_torch
from prefix_models import with_lengths
from torch.utils.flop_counter import FlopCounterMode

from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training.cost import peak_flops, training_flops
from nmtkit.training.loss import projected_cross_entropy

SIZES: dict[str, Any] = {"d_model": 12, "d_ff": 20, "heads": 3, "encoder_layers": 2, "decoder_layers": 3}
W = 30


def lengths(*values: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    return np.array(values, np.int32)


def _addmm_flops(total: torch.Size, first: torch.Size, second: torch.Size, **_: Any) -> int:
    return 2 * first[0] * first[1] * second[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d_k": 5, "d_v": 2},
        {"norm": "pre", "share_embeddings": "none"},
        {"norm_type": "rms", "activation": "swiglu", "positions": "rotary", "qk_norm": True, "bias": False},
    ],
)
def test_forward_and_training_flops_equal_the_counts_of_torch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch)  # it counts only its own operators
    config = TransformerConfig(**SIZES, **options)
    model = Transformer(config, W, W).train()
    pairs, S, T = 4, 7, 5  # so short that attention takes its explicit path, whose products torch counts
    src, tgt = torch.randint(4, W, (pairs, S)), torch.randint(4, W, (pairs, T))
    sizes = lengths(*[S] * pairs), lengths(*[T] * pairs)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*with_lengths(src), tgt)
    assert config.forward_flops(W, *sizes) == counter.get_total_flops()
    in_place = {torch.ops.aten.addmm_: _addmm_flops}  # torch counts only the form that returns a new tensor
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        hidden = model.decode(tgt, model.encode(*with_lengths(src))).flatten(0, 1)
        loss, _ = projected_cross_entropy(hidden, model.output_matrix, tgt.flatten(), 0.1)
        torch.autograd.backward(loss)
    assert training_flops(config, W, *sizes) == counter.get_total_flops()


@pytest.mark.parametrize("config", [TransformerConfig(**SIZES), RecurrentConfig(), ConvolutionalConfig()])
def test_each_sentence_of_a_batch_costs_what_its_own_length_costs(config: ModelConfig) -> None:
    alone = [config.forward_flops(W, lengths(S), lengths(T)) for S, T in ((3, 8), (90, 70))]
    assert config.forward_flops(W, lengths(3, 90), lengths(8, 70)) == sum(alone)


def test_an_attention_window_makes_the_cost_linear_in_the_length() -> None:
    config = TransformerConfig(**SIZES, attention_window=4)
    short, longer, longest = (config.forward_flops(W, lengths(n), lengths(1)) for n in (100, 200, 300))
    assert longest - longer == longer - short
    assert short < TransformerConfig(**SIZES).forward_flops(W, lengths(100), lengths(1))


@pytest.mark.parametrize(
    ("name", "half", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", True, 989e12),
        ("NVIDIA H100 PCIe", True, 756e12),
        ("NVIDIA A100-SXM4-80GB", False, 19.5e12),
        ("NVIDIA L40S", True, 362e12),
        ("Tesla P100-PCIE-16GB", True, 9.5e12),
        ("NVIDIA GeForce 256", True, None),
    ],
)
def test_peak_flops_are_looked_up_by_device_name(name: str, half: bool, expected: float | None) -> None:
    assert peak_flops(name, half) == expected
