"""Attention: against torch's own, explicit against fused, restricted against masked."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from allocations import peak_memory
from torch import Tensor, nn
from torch.testing import assert_close

from nmtkit.model import attention
from nmtkit.model.attention import CrossAttention, SelfAttention, attend, position_mask
from nmtkit.model.config import TransformerConfig

D, H = 12, 3
SIZES: dict[str, Any] = {"d_model": D, "d_ff": 8, "heads": H, "dropout": 0.0}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lengths_mask(lengths: Iterable[int], longest: int) -> Tensor:
    """(B, 1, 1, longest), True where a sentence has a token."""
    return (torch.arange(longest) < torch.tensor(list(lengths)).unsqueeze(1))[:, None, None, :]


def randomized(module: nn.Module) -> Any:
    """The module in float64 with every parameter drawn, biases too."""
    torch.manual_seed(1)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def torch_attention(q: nn.Linear | None, kv: nn.Linear, out: nn.Linear) -> nn.MultiheadAttention:
    """torch's attention with the same weights; `q` is None where `kv` holds the queries' rows too."""
    reference = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    parts = [kv] if q is None else [q, kv]
    reference.in_proj_weight.data = torch.cat([part.weight.data for part in parts])
    reference.in_proj_bias.data = torch.cat([part.bias.data for part in parts])
    reference.out_proj.load_state_dict(out.state_dict())
    return reference


@pytest.fixture(params=["explicit", "fused"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on both ways through `attend`."""
    monkeypatch.setattr(attention, "_fused_pays", lambda q, k: request.param == "fused")
    return str(request.param)


def test_attend_follows_the_formula_of_the_paper(path: str) -> None:
    q, k, v = draw(2, H, 5, 4, seed=1), draw(2, H, 7, 4, seed=2), draw(2, H, 7, 6, seed=3)
    mask = lengths_mask((7, 4), 7)
    heads = attend(q, k, v, mask)
    for b in range(2):
        for h in range(H):
            for t in range(5):
                real = int(mask[b].sum())
                scores = torch.stack([q[b, h, t] @ k[b, h, s] / 4**0.5 for s in range(real)]).exp()
                expected = sum(scores[s] / scores.sum() * v[b, h, s] for s in range(real))
                assert_close(heads[b, h, t], expected)


def test_cross_attention_equals_torch_with_its_weights(path: str) -> None:
    ours = randomized(CrossAttention(TransformerConfig(**SIZES)))
    reference = torch_attention(ours.q, ours.kv, ours.out)
    x, memory, mask = draw(2, 4, D, seed=1), draw(2, 6, D, seed=2), lengths_mask((2, 6), 6)
    expected, weights = reference(
        x, memory, memory, key_padding_mask=~mask[:, 0, 0], need_weights=True, average_attn_weights=False
    )
    assert_close(ours(x, memory, mask), expected)
    record: list[Tensor] = []
    assert_close(ours(x, memory, mask, record), expected)
    assert_close(record[0], weights)


def test_keys_and_values_can_have_any_width(path: str) -> None:
    config = TransformerConfig(**SIZES, d_k=5, d_v=7)
    ours = randomized(SelfAttention(config, causal=False))
    assert ours.qkv.weight.shape == (H * (5 + 5 + 7), D)
    assert ours.out.weight.shape == (D, H * 7)
    x, mask = draw(2, 4, D), lengths_mask((4, 4), 4)
    q, k, v = ours.qkv(x).split((H * 5, H * 5, H * 7), dim=-1)
    heads = []
    for h in range(H):  # head by head, as the paper has it
        scores = q[..., 5 * h : 5 * h + 5] @ k[..., 5 * h : 5 * h + 5].transpose(1, 2) / 5**0.5
        heads.append(scores.softmax(-1) @ v[..., 7 * h : 7 * h + 7])
    assert_close(ours(x, mask), ours.out(torch.cat(heads, dim=-1)))


def test_window_masks_match_their_definition() -> None:
    device = torch.device("cpu")
    for length in (1, 2, 5, 9):
        for window in (1, 2, 4, 20):
            i, j = torch.arange(length).unsqueeze(1), torch.arange(length).unsqueeze(0)
            assert_close(position_mask(length, device, False, window), (i - j).abs() <= window)
            assert_close(position_mask(length, device, True, window), (j <= i) & (i - j <= window))
        assert_close(position_mask(length, device, True, length), j <= i)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 50])
@pytest.mark.parametrize("length", [1, 7, 24])
def test_blockwise_attention_equals_masked_full_attention(causal: bool, window: int, length: int) -> None:
    ours = randomized(SelfAttention(TransformerConfig(**SIZES, d_v=5, attention_window=window), causal))
    x = draw(3, length, D).requires_grad_()
    # An encoder's padding is hidden; a decoder has its padding behind every real position, and no mask.
    mask = None if causal else lengths_mask((length, max(1, length // 2), 1), length)
    real = torch.ones(3, length, dtype=torch.bool) if mask is None else mask[:, 0, 0]
    record: list[Tensor] = []
    explicit = ours(x, mask, record)[real]  # asking for the weights takes the path with a mask
    blockwise = ours(x, mask)[real]
    assert_close(blockwise, explicit)
    downstream = draw(*explicit.shape, seed=9)
    (expected,) = torch.autograd.grad(explicit, x, downstream)
    (gradient,) = torch.autograd.grad(blockwise, x, downstream)
    assert_close(gradient, expected)
    near = position_mask(length, x.device, causal, window)
    assert (record[0].transpose(0, 1)[:, real].masked_select(~near.expand(3, -1, -1)[real]) == 0).all()


def test_attention_dropout_acts_only_in_training() -> None:
    ours = SelfAttention(TransformerConfig(**SIZES, attention_dropout=0.5), causal=False)
    x = torch.randn(2, 6, D)
    torch.manual_seed(3)
    assert not torch.equal(ours(x, None), ours(x, None))
    ours.eval()
    assert torch.equal(ours(x, None), ours(x, None))


@pytest.mark.parametrize("causal", [False, True])
def test_the_memory_of_a_window_is_linear_in_the_length(causal: bool) -> None:
    ours = randomized(SelfAttention(TransformerConfig(**SIZES, attention_window=4), causal))
    short, longer = (peak_memory(lambda n=n: ours(draw(2, n, D), None)) for n in (300, 600))  # type: ignore[misc]
    assert longer < 2.1 * short
