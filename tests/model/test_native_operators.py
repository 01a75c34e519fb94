"""Compiled dropout, residual norm and attention of training: against torch in float64, with every build."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from native_builds import BUILDS, use_build, use_torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from nmtkit.model import short_attention
from nmtkit.model.attention import CrossAttention, SelfAttention
from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import Dropout, dropout
from nmtkit.model.layers import Residual
from nmtkit.model.residual import LayerNorm, add_and_norm
from nmtkit.model.short_attention import attend_short


@pytest.fixture(autouse=True, params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_build(request.param, monkeypatch)
    return str(request.param)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def run(operator: Callable[..., Tensor], inputs: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    """The result, and the gradients of a weighted sum of it by the inputs, in that number format."""
    inputs = [x.detach().to(kind).requires_grad_() for x in inputs]
    torch.manual_seed(1)
    result = operator(*inputs)
    downstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)).bfloat16().to(kind)
    return [result.detach(), *torch.autograd.grad(result, inputs, downstream)]


def check(operator: Callable[..., Tensor], *inputs: Tensor, kind: torch.dtype = torch.float32) -> None:
    """Compares with float64, which torch computes, with the same dropout masks. bf16 may round each number once."""
    inputs = tuple(x.to(kind) for x in inputs)
    rtol, atol = (2e-5, 2e-5) if kind == torch.float32 else (2**-8, 1e-4)
    for found, expected in zip(run(operator, inputs, kind), run(operator, inputs, torch.float64), strict=True):
        assert found.dtype == kind
        assert_close(found.double(), expected, rtol=rtol, atol=atol)


def coarse(x: Tensor) -> Tensor:
    """x in eighths: sums of a few, and twice as much, are exact in bf16."""
    return (8 * x.detach()).round() / 8


# --- dropout


@pytest.mark.parametrize("shape", [(1,), (0, 4), (3, 20_001)])
def test_dropout_has_the_bits_of_torch_with_and_without_a_residual(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, residual = draw(*shape), draw(*shape, seed=1)
    operators: list[tuple[Any, list[Tensor]]] = [
        (lambda x: dropout(x, 0.3), [x]),
        (lambda x, residual: dropout(x, 0.3, residual), [x, residual]),
    ]
    found = [run(operator, inputs, torch.float32) for operator, inputs in operators]
    use_torch(monkeypatch)
    expected = [run(operator, inputs, torch.float32) for operator, inputs in operators]
    assert all(torch.equal(a, b) for pair in zip(found, expected, strict=True) for a, b in zip(*pair, strict=True))


@pytest.mark.parametrize("shape", [(1,), (3, 20_001)])
def test_dropout_in_bf16_is_rounded_once(shape: tuple[int, ...]) -> None:
    x, residual = draw(*shape), draw(*shape, seed=1)
    check(lambda x: dropout(x, 0.3), x, kind=torch.bfloat16)
    check(lambda x, residual: dropout(x, 0.3, residual), x, residual, kind=torch.bfloat16)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_dropout_neither_hides_nor_spreads_infinity_and_nan(kind: torch.dtype) -> None:
    """Dropped or not: 0 times either is NaN."""
    x = torch.tensor([float("nan"), 1.0, 1.0, float("inf"), 1.0] * 27, dtype=kind)
    assert torch.equal(dropout(x, 0.5).isfinite(), x.isfinite())


# --- LayerNorm(x + Dropout(y))


def norm_of(rate: float) -> Callable[..., Tensor]:
    def operator(x: Tensor, y: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        norm = nn.LayerNorm(x.size(-1)).to(x.dtype)
        del norm.weight, norm.bias
        exact = torch.promote_types(x.dtype, torch.float32)
        norm.weight, norm.bias = gain.to(exact), bias.to(exact)  # type: ignore[assignment]
        return add_and_norm(x, y, Dropout(rate), norm)

    return operator


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("width", [1, 9, 130])
@pytest.mark.parametrize("rows", [0, 1, 64, 200])
def test_a_residual_with_norm_is_that_of_torch(rows: int, width: int, rate: float) -> None:
    check(norm_of(rate), draw(rows, width), draw(rows, width, seed=1), draw(width, seed=2), draw(width, seed=3))


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("width", [1, 9, 130])
@pytest.mark.parametrize("rows", [1, 64, 200])
def test_a_residual_with_norm_in_bf16_computes_in_fp32(rows: int, width: int, rate: float) -> None:
    x, y, gain, bias = (draw(*shape, seed=i) for i, shape in enumerate([(rows, width)] * 2 + [(width,)] * 2))
    check(norm_of(rate), coarse(x), coarse(y), coarse(gain), coarse(bias), kind=torch.bfloat16)


def test_residuals_in_another_memory_order_give_the_same_results() -> None:
    x, y, gain, bias = draw(6, 10), draw(6, 10, seed=1), draw(10), draw(10)
    operators: list[Callable[..., Tensor]] = [norm_of(0.3), lambda x, y, *_: dropout(y, 0.3, x)]
    for operator in operators:
        found = []
        for given in ((x, y), (x.t().contiguous().t(), y.t().contiguous().t())):
            torch.manual_seed(1)
            found.append(operator(*given, gain, bias))
        assert torch.equal(*found)


def test_a_residual_with_norm_of_mixed_number_formats_is_left_to_torch() -> None:
    x, y = torch.ones(2, 12), torch.arange(24.0).view(2, 12)
    for kinds in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16, torch.float16)):
        found = add_and_norm(x.to(kinds[0]), y.to(kinds[1]), Dropout(0.0), LayerNorm(12))
        assert_close(found.float(), F.layer_norm(x + y, (12,)), rtol=0, atol=0.02)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_residual_with_norm_keeps_the_nan_of_its_row(bad: float) -> None:
    x = draw(3, 10).detach()
    x[1, 4] = bad
    y = norm_of(0.3)(x, draw(3, 10), draw(10), draw(10))
    assert y.isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_of_gain_and_bias_do_not_depend_on_the_number_of_threads(kind: torch.dtype) -> None:
    inputs = [draw(500, 130), draw(500, 130, seed=1), draw(130), draw(130)]
    threads = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(run(norm_of(0.3), inputs, kind))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_residual_connection_is_that_of_torch_in_training_and_evaluation(norm: str) -> None:
    for training in (True, False):
        residual = Residual(TransformerConfig(d_model=12, heads=3, dropout=0.4, norm=norm)).train(training)
        check(lambda x, r=residual: r.to(x.dtype)(x, torch.tanh), draw(4, 5, 12))


# --- attention


def attention_config(sizes: dict[str, Any]) -> TransformerConfig:
    return TransformerConfig(d_model=12, d_ff=8, heads=3, **sizes)


@pytest.fixture(params=[{}, {"d_k": 5, "d_v": 7}, {"d_k": 8, "d_v": 16}, {"d_k": 33, "d_v": 1}])
def sizes(request: pytest.FixtureRequest) -> dict[str, Any]:
    sizes: dict[str, Any] = request.param
    return sizes


def mask_of(lengths: Sequence[int], longest: int) -> Tensor:
    return (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None, :]


@pytest.mark.parametrize("length", [1, 13, short_attention.MAX_KEYS])
def test_self_attention_is_that_of_torch(length: int, sizes: dict[str, Any]) -> None:
    for causal, mask in ((True, None), (False, None), (False, mask_of([length, 1, (length + 1) // 2], length))):
        torch.manual_seed(3)
        layer = SelfAttention(attention_config(sizes), causal)
        check(lambda x, layer=layer, mask=mask: layer.to(x.dtype)(x, mask), draw(3, length, 12))


@pytest.mark.parametrize("length", [1, 13, short_attention.MAX_KEYS])
def test_self_attention_in_bf16_computes_in_fp32(length: int, sizes: dict[str, Any]) -> None:
    layer = SelfAttention(attention_config(sizes), causal=False)
    projections = draw(3, length, sum(layer.widths))
    for causal, mask in ((True, None), (False, None), (False, mask_of([length, 1, (length + 1) // 2], length))):
        layer.causal = causal
        check(lambda x, mask=mask: layer._attend(x, mask, None), projections, kind=torch.bfloat16)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (17, 48)])
def test_cross_attention_in_bf16_computes_in_fp32(queries: int, keys: int, sizes: dict[str, Any]) -> None:
    layer = CrossAttention(attention_config(sizes))
    q, kv = draw(2, queries, layer.widths[0]), draw(2, keys, sum(layer.widths), seed=1)
    mask = mask_of([keys, 1], keys)
    check(lambda q, kv: layer._attend(q, kv, mask, None), q, kv, kind=torch.bfloat16)


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (17, 48)])
def test_cross_attention_is_that_of_torch(queries: int, keys: int, sizes: dict[str, Any]) -> None:
    torch.manual_seed(3)
    layer = CrossAttention(attention_config(sizes))
    mask = mask_of([keys, 1], keys)
    check(lambda x, memory: layer.to(x.dtype)(x, memory, mask), draw(2, queries, 12), draw(2, keys, 12, seed=1))


def test_a_mask_may_have_gaps() -> None:
    layer = SelfAttention(attention_config({}), causal=False)
    mask = torch.tensor([[True, False, True, True, False], [False, True, False, False, True]])[:, None, None, :]
    check(lambda x: layer.to(x.dtype)(x, mask), draw(2, 5, 12))


def test_the_attention_of_a_sentence_with_nan_leaves_the_others_finite() -> None:
    x = draw(3, 6, 12).detach()
    x[1, 2, 0] = float("nan")
    found = SelfAttention(attention_config({}), causal=False)(x, None)
    assert found.isnan().any(-1).any(-1).tolist() == [False, True, False]


PACKED = (3, 1, 9, 17), (5, 2, 8, 1)  # queries and keys of each sentence
FILLER = 6


def starts_of(lengths: Sequence[int]) -> Tensor:
    return F.pad(torch.tensor(lengths).cumsum(0, dtype=torch.int32), (1, 0))


def sentence_by_sentence(attend: Callable[..., Tensor], sides: Sequence[Tensor], lengths: Sequence[Any]) -> Tensor:
    """The attention of each sentence alone, then zeros for the filler."""
    *sentences, filler = zip(
        *(torch.split(x, [*side, FILLER]) for x, side in zip(sides, lengths, strict=True)), strict=True
    )
    heads = [attend(tuple(x.unsqueeze(0) for x in sentence)).squeeze(0) for sentence in sentences]
    return torch.cat([*heads, heads[0].new_zeros(len(filler[0]), heads[0].size(1))])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_of_packed_sentences_is_that_of_each_alone(
    causal: bool, kind: torch.dtype, sizes: dict[str, Any]
) -> None:
    layer, starts = SelfAttention(attention_config(sizes), causal), starts_of(PACKED[0])
    qkv = [draw(sum(PACKED[0]) + FILLER, sum(layer.widths))]
    packed = run(lambda x: attend_short((x,), layer.sizes, causal, starts=(starts, starts)), qkv, kind)
    alone = run(lambda *x: sentence_by_sentence(lambda y: layer._attend(y[0], None, None), x, PACKED[:1]), qkv, kind)
    assert all(torch.equal(a, b) for a, b in zip(packed, alone, strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_cross_attention_of_packed_sentences_is_that_of_each_alone(kind: torch.dtype, sizes: dict[str, Any]) -> None:
    layer = CrossAttention(attention_config(sizes))
    queries, keys = map(starts_of, PACKED)
    sides = [draw(sum(PACKED[0]) + FILLER, layer.widths[0]), draw(sum(PACKED[1]) + FILLER, sum(layer.widths), seed=1)]
    packed = run(lambda q, kv: attend_short((q, kv), layer.sizes, False, starts=(queries, keys)), sides, kind)
    every = mask_of([1], 1)
    alone = run(
        lambda *x: sentence_by_sentence(lambda y: layer._attend(y[0], y[1], every, None), x, PACKED), sides, kind
    )
    assert all(torch.equal(a, b) for a, b in zip(packed, alone, strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_attention_does_not_depend_on_the_number_of_threads(kind: torch.dtype) -> None:
    layer = SelfAttention(attention_config({}), causal=True)
    threads = torch.get_num_threads()
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(run(lambda x: layer._attend(x, None, None), [draw(20, 9, 36)], kind))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
