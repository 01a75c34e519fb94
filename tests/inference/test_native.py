"""The compiled search: its products against exact ones, its results against the torch model."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from in_tensors import InTensors, array, compiled, search, tensor, unwrapped
from native_builds import BUILDS, use_build
from prefix_models import with_lengths
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.int8 import to_int8
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.forced import score, with_attention
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.search import search as search_arrays
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.top_k import top_k
from nmtkit.machine import native_build
from nmtkit.machine import threads as machine_threads
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary

W = 37  # no multiple of a vector
QUANT_MAX = dict.fromkeys(BUILDS, 63) | {"_native_avx512vnni": 127}  # kQuantMax of each build


@pytest.fixture(autouse=True, params=QUANT_MAX)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with every build that this CPU supports."""
    use_build(request.param, monkeypatch)
    return str(request.param)


def threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(machine_threads, "_threads", count)


class NativeLinear:
    """The compiled product x·Wᵀ + b of tensors."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eight_bits: bool) -> None:
        self.rows = len(weight)
        self.matrix = native_build.native.matrix(array(weight), array(bias), "int8" if eight_bits else "fp32")

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.empty(*x.shape[:-1], self.rows)
        native_build.native.multiply(self.matrix, array(x), y.numpy(), machine_threads.thread_count())
        return y


def native_top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, columns = top_k(array(scores), count)
    return tensor(values), tensor(columns)


def layer(rows: int, columns: int, eight_bits: bool, seed: int = 1) -> tuple[NativeLinear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(rows, columns, generator=generator), torch.randn(rows, generator=generator)
    return NativeLinear(weight, bias, eight_bits), weight, bias


# Products -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("columns", [5, 256])
@pytest.mark.parametrize("rows", [1, 16, 83])
def test_products_match_torch_for_any_number_of_rows(rows: int, columns: int) -> None:
    linear, weight, bias = layer(rows, columns, eight_bits=False)
    for count in (*range(1, 26), 59, 60, 61, 125):
        x = torch.randn(count, columns)
        assert_close(linear(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("columns", [5, 256])
@pytest.mark.parametrize("rows", [1, 16, 83])
def test_int8_products_are_exact_sums_of_the_quantized_numbers(rows: int, columns: int, build: str) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randint(-40, 41, (rows, columns), generator=generator).float()  # not scaled down
    weight[:, 3] = 127.0
    scales, bias = torch.rand(rows, 1, generator=generator) + 0.1, torch.randn(rows, generator=generator)
    linear = NativeLinear(weight * scales, bias, eight_bits=True)
    for count in (*range(1, 14), 61):
        x = torch.randn(count, columns) * 10.0 ** torch.arange(count).remainder(5).unsqueeze(1)
        peak = x.abs().amax(1, keepdim=True)
        exact = ((x * (QUANT_MAX[build] / peak)).round().double() @ weight.double().T) * (
            peak / QUANT_MAX[build]
        ) * scales.T + bias
        assert_close(linear(x), exact.float(), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("columns", [range(64), (0, 1, 4, 5), (2, 3, 6, 7)], ids=["all", "first four", "other four"])
def test_int8_products_never_overflow(columns: Sequence[int]) -> None:
    for sign in (1.0, -1.0):
        weight = torch.zeros(20, 64)
        weight[:, columns] = sign  # the largest int8 weights; AVX2 adds the products of these four columns in int16
        x = torch.ones(5, 64)
        y = NativeLinear(weight, None, eight_bits=True)(x)
        assert_close(y, torch.full_like(y, len(columns) * sign), rtol=1e-2, atol=0.0)
        y = NativeLinear(weight, None, eight_bits=True)(-x)
        assert_close(y, torch.full_like(y, -len(columns) * sign), rtol=1e-2, atol=0.0)


@torch.inference_mode()
@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nonfinite_values_propagate_through_products(eight_bits: bool, wrong: float) -> None:
    weight, x = torch.ones(20, 16), torch.ones(9, 16)
    weight[3, 5] = x[2, 15] = wrong
    finite = NativeLinear(weight, None, eight_bits)(x).isfinite()
    assert not finite[:, 3].any()
    assert not finite[2].any()
    assert finite.sum() == 8 * 19


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("damaged", ["encoder.0.feed_forward.inner.bias", "projection_bias"])
def test_nan_in_the_weights_shows_in_all_probabilities(damaged: str, precision: str) -> None:
    model = make(output_bias=True)
    model.get_parameter(damaged)[-1] = math.nan
    fast = packed(model, precision)
    log_probs = fast.step(torch.full((2,), BOS), fast.start(fast.encode(*with_lengths(sources(5, 3)))))
    assert log_probs[:, EOS:].isnan().all()


# From logits to tokens ------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("width", [3, 63, 8003])
@pytest.mark.parametrize("count", [1, 20, 300])
def test_the_best_of_each_row_match_topk(width: int, count: int) -> None:
    scores = torch.randn(40, width)
    scores[0, -2:] = 9.0  # in what is left beside whole vectors
    scores[1, 1:] = -math.inf
    values, columns = native_top_k(scores, count)
    assert torch.equal(values, scores.topk(min(count, width)).values)
    assert torch.equal(values, scores.gather(1, columns))
    assert all(len(set(row)) == len(row) for row in columns.tolist())


@torch.inference_mode()
def test_equal_scores_rank_in_order_of_position() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, -math.inf, 3.0, 2.0, 3.0] + [3.0] * 20])
    assert native_top_k(scores, 3)[1].tolist() == [[1, 2, 4]]
    assert native_top_k(scores[:, :2], 3)[1].tolist() == [[1, 0]]
    scores = torch.randint(50, (20, 1000)).float()
    in_order = scores.sort(dim=1, descending=True, stable=True).indices
    for count in (100, 300, 1000):
        assert torch.equal(native_top_k(scores, count)[1], in_order[:, :count])


@torch.inference_mode()
def test_the_best_scores_are_never_nan() -> None:
    scores = torch.tensor([[math.nan, 5.0, 3.0, 9.0], [5.0, 3.0, math.nan, 9.0], [math.nan, 1.0, math.nan, math.nan]])
    values, columns = native_top_k(scores, 2)
    assert columns[:2].tolist() == [[3, 1], [3, 0]]
    assert values.tolist() == [[9.0, 5.0], [9.0, 5.0], [1.0, -math.inf]]
    assert native_top_k(scores, 0)[0].shape == (3, 0)


@torch.inference_mode()
def test_probabilities_of_large_logits_are_exact() -> None:
    model = make(output_bias=True, share_embeddings="none")
    model.output_matrix.zero_()
    model.get_parameter("projection_bias").fill_(1e4)  # neighbours in fp32 are 1e-3 apart
    fast = packed(model)
    log_probs = fast.step(torch.full((1,), BOS), fast.start(fast.encode(*with_lengths(sources(5)))))
    assert_close(log_probs[:, EOS:], torch.full((1, W - EOS), -math.log(W - 2)), rtol=1e-6, atol=0)


# The search -----------------------------------------------------------------------------------------------------

VARIANTS: list[dict[str, Any]] = [  # test_every_option.py goes through all values of all options
    {},
    {"d_model": 12, "d_ff": 20, "d_k": 5, "d_v": 70, "encoder_layers": 3},
    {"share_embeddings": "none", "norm": "pre", "d_model": 24, "heads": 1, "decoder_layers": 1},
    {"activation": "gelu", "output_bias": True, "d_ff": 27, "positions": "learned", "max_positions": 200},
    {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary", "d_ff": 27, "bias": False},
    {"positions": "rotary", "d_k": 10, "qk_norm": True, "activation": "swiglu", "encoder_layers": 3},
    {"decoder_recurrence": "ssru", "positions": "marian", "d_k": 3, "d_v": 2},
]
variants = pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))


def make(seed: int = 1, source_size: int = W, **changes: Any) -> Transformer:
    """A small model whose hypotheses differ clearly."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(**(sizes | changes)), source_size, W).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):  # which initialization leaves at 0 and 1
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embedding" in name or name.startswith("projection"):
                parameter.mul_(2.0)
    return model


def packed(model: Transformer, precision: str = "fp32") -> Any:
    """The compiled search of the model."""
    return InTensors(compiled(model, precision))


def sources(*lengths: int, seed: int = 0) -> Tensor:
    """Random ids (B, longest), each row with its end, then PAD."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(EOS + 1, W, (len(lengths), max(lengths)), generator=generator)
    places, ends = torch.arange(max(lengths)), torch.tensor(lengths).unsqueeze(1) - 1
    return ids.masked_fill(places == ends, EOS).masked_fill(places > ends, PAD)


def texts(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in nbest] for nbest in found]


def scores(found: list[list[Hypothesis]]) -> list[float]:
    return [log_prob for nbest in found for one in nbest for log_prob in (one.score, *one.token_log_probs)]


LENGTHS = (7, 1, 12, 3, 90, 5, 2, 70, 9, 4)  # two that fill a block by themselves
CONFIGS = [
    SearchConfig(beam=1, max_len_b=10),
    SearchConfig(beam=4, nbest=4, max_len_b=10),
    SearchConfig(beam=6, nbest=6, diverse_groups=3, max_len_b=8),
    SearchConfig(sampling=True, nbest=3, max_len_b=8, seed=3),
]


@variants
@pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "beam", "diverse", "sampled"])
def test_the_compiled_search_finds_the_same_outputs_as_torch(changes: dict[str, Any], config: SearchConfig) -> None:
    model, src = make(**changes), sources(*LENGTHS)
    expected, found = (search(each, *with_lengths(src), config) for each in (torch_backend(model), packed(model)))
    assert texts(found) == texts(expected)
    assert scores(found) == pytest.approx(scores(expected), abs=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "beam", "diverse", "sampled"])
def test_the_attention_recorded_in_a_search_is_that_of_its_outputs(precision: str, config: SearchConfig) -> None:
    model, lengths = unwrapped(packed(make(), precision)), np.array(LENGTHS)
    src = sources(*LENGTHS).numpy()
    found = search_arrays(model, src, lengths, config, attention_layer=model.alignment_layer(None))
    rows = [row[:length].tolist() for row, length in zip(src, lengths, strict=True)]
    bare = [[replace(one, attention=None) for one in nbest] for nbest in found]
    for nbest, expected in zip(found, with_attention(model, rows, bare, None), strict=True):
        for one, other in zip(nbest, expected, strict=True):
            assert one.attention is not None
            assert other.attention is not None
            assert np.array_equal(one.attention, other.attention)


@torch.inference_mode()
@variants
def test_each_step_computes_the_log_probabilities_of_torch_within_1e_5(changes: dict[str, Any]) -> None:
    model, src = make(**changes), with_lengths(sources(7, 1, 12, 3))
    backends = [packed(model), InTensors(torch_backend(model))]
    states = [each.start(each.encode(*src)) for each in backends]
    for tokens in (torch.full((4,), BOS), *torch.randint(EOS + 1, W, (9, 4))):
        found, expected = (each.step(tokens, state) for each, state in zip(backends, states, strict=True))
        assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_sentence_may_be_longer_than_a_block_of_rows() -> None:
    model, src, config = make(), sources(700, 3, 121), SearchConfig(beam=2, max_len_a=0.0, max_len_b=5)
    expected, found = (search(each, *with_lengths(src), config) for each in (torch_backend(model), packed(model)))
    assert texts(found) == texts(expected)
    assert scores(found) == pytest.approx(scores(expected), abs=1e-3)


@variants
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("config", CONFIGS[:2], ids=["greedy", "beam"])
def test_results_are_bit_identical_in_any_batch_and_with_any_number_of_threads(
    changes: dict[str, Any], precision: str, config: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, src = packed(make(**changes), precision), sources(*LENGTHS)
    together = search(model, *with_lengths(src), config)
    assert [search(model, *with_lengths(row[row != PAD].unsqueeze(0)), config)[0] for row in src] == together
    threads(monkeypatch, 3)
    assert search(model, *with_lengths(src), config) == together
    assert search(model, *with_lengths(src.flip(0)), config) == together[::-1]


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("count", [0, 1, 4, W, W + 5])
def test_best_step_equals_the_best_of_all_log_probabilities_bit_for_bit(precision: str, count: int) -> None:
    model, src = packed(make(), precision), sources(5, 3, 8)
    one, other = model.start(model.encode(*with_lengths(src))), model.start(model.encode(*with_lengths(src)))
    rows, excluded = torch.arange(3).repeat_interleave(7), (EOS, 9)
    for tokens in (torch.full((21,), BOS), torch.arange(21) + 5):
        one.reorder(rows)
        other.reorder(rows)
        log_probs = model.step(tokens, one)
        log_probs[:, list(excluded)] = -torch.inf
        expected = [part[:, :count] for part in log_probs.sort(dim=1, descending=True, stable=True)]
        for found, asked in zip(model.best_step(tokens, other, count, excluded), expected, strict=True):
            assert torch.equal(found, asked)
        rows = torch.arange(21)
    with pytest.raises(IndexError, match="no token 37"):
        model.best_step(torch.full((21,), W), other, count, excluded)
    with pytest.raises(IndexError, match="no token 37"):
        model.best_step(tokens, other, count, (W,))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_scoring_equals_the_search_scores_bit_for_bit_in_any_batch(precision: str) -> None:
    for model in (packed(make(), precision), Ensemble([packed(make(), precision)])):
        config, src = SearchConfig(nbest=4, max_len_b=5), sources(7, 1, 12, 3)
        found = search(model, *with_lengths(src), config)
        hypotheses = [one for nbest in found for one in nbest]
        rows = [row[row != PAD].tolist() for row, nbest in zip(src, found, strict=True) for _ in nbest]
        targets = [one.ids for one in hypotheses]
        assert score(unwrapped(model), rows, targets, config) == hypotheses
        assert score(unwrapped(model), rows[:1], targets[:1], config) == hypotheses[:1]


def test_source_ids_outside_the_vocabulary_are_an_error() -> None:
    model = packed(make())
    for wrong in (W, -1):
        with pytest.raises(IndexError, match="not in the vocabulary"):
            model.encode(*with_lengths(torch.tensor([[5, wrong, EOS]])))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_encoder_uses_lengths_instead_of_padding_ids(precision: str) -> None:
    model, config = make(), SearchConfig(nbest=2, max_len_b=6)
    src, lengths = torch.tensor([[5, PAD, 7, EOS, 9], [5, PAD, 8, EOS, PAD]]), torch.tensor([4, 4])
    fast = packed(model, precision)
    found = search(fast, src, lengths, config)
    assert scores(found[:1]) != scores(found[1:])  # they differ behind the id of padding
    if precision == "fp32":
        assert scores(found) == pytest.approx(scores(search(torch_backend(model), src, lengths, config)), abs=1e-3)
    src[:, 4] = 11
    assert search(fast, src, lengths, config) == found


def test_lengths_that_do_not_fit_the_rows_are_errors() -> None:
    model, src = packed(make()), sources(3, 4)
    for wrong in ([3, 5], [0, 4], [-1, 4], [2**40, 4]):
        with pytest.raises(IndexError, match="of 4 tokens"):
            model.encode(src, torch.tensor(wrong))
    for wrong in ([3], [3, 4, 4]):
        with pytest.raises(IndexError, match="lengths do not fit 2 sentences"):
            model.encode(src, torch.tensor(wrong))


def test_stored_integers_and_scales_compute_the_same_as_the_weights_that_they_were_made_of() -> None:
    model = make(share_embeddings="none", norm="pre", output_bias=True)
    weights = as_arrays(collect_weights(model))
    tokenizer = SpaceTokenizer(Vocabulary(SPECIALS))
    stored = to_int8(Checkpoint(model.config, weights, "en", "de", tokenizer, tokenizer))
    expected, found = (
        search(
            NativeTransformer(model.config, each, "int8", lambda: torch_backend(model), scales),
            *with_lengths(sources(*LENGTHS)),
            SearchConfig(nbest=3),
        )
        for each, scales in ((weights, None), (stored.weights, stored.scales))
    )
    assert found == expected


@torch.inference_mode()
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_pad_and_bos_have_no_probability(precision: str) -> None:
    model = make(output_bias=True)
    assert model.projection_bias is not None
    model.projection_bias[[PAD, BOS]] = 50.0
    fast, src = packed(model, precision), with_lengths(sources(5, 3))
    log_probs = fast.step(torch.full((2,), BOS), fast.start(fast.encode(*src)))
    assert (log_probs[:, [PAD, BOS]] == -math.inf).all()
    assert_close(log_probs.exp().sum(1), torch.ones(2))
    best, tokens = fast.best_step(torch.full((2,), BOS), fast.start(fast.encode(*src)), W, ())
    assert set(tokens[best == -math.inf].tolist()) == {PAD, BOS}


def test_matrices_whose_int8_sums_would_overflow_32_bits_stay_in_fp32() -> None:
    weight, x = torch.ones(1, 2**16 + 1), torch.ones(1, 2**16 + 1)
    assert NativeLinear(weight, None, eight_bits=True)(x).item() == 2**16 + 1
    weight, x = torch.ones(1, 2**16), torch.ones(1, 2**16)
    assert NativeLinear(weight, None, eight_bits=True)(x).item() == pytest.approx(2**16, rel=0.01)


@torch.inference_mode()
def test_invalid_rows_and_tokens_are_errors() -> None:
    model = packed(make())
    state = model.start(model.encode(*with_lengths(sources(3, 4))))
    for tokens in ([5, W], [-1, 5], [5], [5, 5, 5]):
        with pytest.raises(IndexError):
            model.step(torch.tensor(tokens), state)
    with pytest.raises(IndexError, match="no row 2"):
        state.reorder(torch.tensor([0, 2]))
