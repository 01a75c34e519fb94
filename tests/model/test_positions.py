"""Positional encodings against the paper's formula."""

import math

import pytest
import torch
from torch.testing import assert_close

from nmtkit.errors import UserError
from nmtkit.model.positions import LearnedPositions, SinusoidalPositions, sinusoids


@pytest.mark.parametrize("d_model", [2, 6, 64])
def test_sinusoids_follow_the_formula_of_the_paper(d_model: int) -> None:
    table = sinusoids(300, d_model).tolist()
    for pos in (0, 1, 2, 17, 299):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert table[pos][2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos][2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(("form", "first"), [("fairseq", 2), ("marian", 0)])
@pytest.mark.parametrize("d_model", [4, 6, 64])
def test_sinusoids_of_other_toolkits_are_theirs_with_sines_and_cosines_interleaved(
    d_model: int, form: str, first: int
) -> None:
    """As in fairseq's `SinusoidalPositionalEmbedding.get_embedding`, where the first token has position 2."""
    half = d_model // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(302, dtype=torch.float).unsqueeze(1) * rates.unsqueeze(0)
    theirs = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
    ours = sinusoids(300, d_model, form)
    assert_close(
        torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=1), theirs[first : first + 300], rtol=0, atol=1e-4
    )  # theirs is fp32


@pytest.mark.parametrize("form", ["sinusoidal", "fairseq"])
def test_the_table_grows_with_the_sequence_length(form: str) -> None:
    positions = SinusoidalPositions(6, form)
    whole = sinusoids(500, 6, form)
    for start, length in ((0, 3), (2, 1), (100, 400), (5, 5)):
        assert torch.equal(positions(start, length), whole[start : start + length])


def test_a_table_grown_in_inference_mode_can_be_used_in_training() -> None:
    positions = SinusoidalPositions(6, "sinusoidal")
    with torch.inference_mode():
        positions(0, 40)
    x = torch.randn(3, 6, requires_grad=True)
    ((x + positions(0, 3)) ** 2).sum().backward()
    assert x.grad is not None


def test_learned_positions_are_parameters_with_a_fixed_maximum() -> None:
    positions = LearnedPositions(5, 6)
    torch.nn.init.normal_(positions.table)
    assert torch.equal(positions(1, 4), positions.table[1:5])
    with pytest.raises(UserError, match=r"6 tokens exceeds the 5 learned positions .*--max-positions"):
        positions(5, 1)
