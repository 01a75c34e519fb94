"""The SSRU against a loop over positions, and the students that use it."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.packed_attention import PackedSide, Packing
from nmtkit.model.presets import PRESETS
from nmtkit.model.ssru import Ssru

D = 6


def make() -> Ssru:
    torch.manual_seed(1)
    return Ssru(TransformerConfig(d_model=D, heads=1)).double()


def inputs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, D, dtype=torch.float64, generator=generator).mul(3).requires_grad_()


def by_loop(ssru: Ssru, x: Tensor) -> Tensor:
    """The outputs (T, D) for the inputs (T, D) of one sentence."""
    state, outputs = torch.zeros(D, dtype=x.dtype), []
    for at in x:
        forget = 1 / (1 + torch.exp(-(ssru.gate.weight @ at + ssru.gate.bias)))
        state = forget * state + (1 - forget) * (ssru.value.weight @ at)
        outputs.append(state.clamp(min=0))
    return torch.stack(outputs)


def check_gradients(ssru: Ssru, x: Tensor, found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected)
    weights = torch.arange(expected.numel(), dtype=torch.float64).reshape(expected.shape).cos()
    for ours, theirs in zip(
        *(torch.autograd.grad((y * weights).sum(), [x, *ssru.parameters()]) for y in (found, expected)), strict=True
    ):
        assert_close(ours, theirs)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 33])
def test_outputs_and_gradients_are_those_of_a_loop_over_positions(length: int) -> None:
    ssru, x = make(), inputs(2, length)
    check_gradients(ssru, x, ssru(x, None), torch.stack([by_loop(ssru, row) for row in x]))


@pytest.mark.parametrize("lengths", [(3, 1, 9, 2), (1, 1), (5,)])
def test_packed_sentences_have_no_effect_on_each_other(lengths: Sequence[int]) -> None:
    filler = 4
    ssru, x = make(), inputs(sum(lengths) + filler)
    packing = Packing.of(PackedSide(torch.tensor(lengths), sum(lengths), max(lengths), filler), None)
    sentences = torch.split(x, [*lengths, filler])[:-1]
    expected = torch.cat([by_loop(ssru, sentence) for sentence in sentences])
    check_gradients(ssru, x, ssru(x, packing)[: sum(lengths)], expected)


@torch.no_grad()
def test_states_of_a_model_in_bf16_are_in_fp32() -> None:
    ssru, x = make().bfloat16(), inputs(300).bfloat16()
    gates, values = torch.sigmoid(ssru.gate(x).double()).numpy(), ssru.value(x).double().numpy()
    state, expected = np.zeros(D), []
    for gate, value in zip(gates, values, strict=True):
        state = gate * state + (1 - gate) * value
        expected.append(np.maximum(state, 0))
    assert_close(ssru(x, None).double(), torch.tensor(np.array(expected)), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize(
    ("preset", "millions"), [("student_tiny", 16.9), ("student_base_memory", 31.2), ("student_base", 42.7)]
)
def test_a_student_has_the_parameters_of_its_model_in_firefox(preset: str, millions: float) -> None:
    with torch.device("meta"):
        model = make_model(PRESETS[preset].model_config(), 32_000, 32_000)
    assert sum(model.count_parameters().values()) / 1e6 == pytest.approx(millions, abs=0.06)
