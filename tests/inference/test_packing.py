"""Packed layers: what the plain ones compute, within the rounding of their number format."""

import pytest
import torch
from nmtkit.model.packing import Fp16Linear, Int8Linear, OneDnnLinear, call_directly, pack
from prefix_models import with_lengths
from small_transformers import W, make, sentences
from torch.nn import functional as F
from torch.testing import assert_close

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.model import packing

needs_fbgemm = pytest.mark.skipif(not packing._has_fbgemm(), reason="this torch has no FBGEMM")


@pytest.fixture(autouse=True)
def quantized_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    if packing._has_fbgemm():
        monkeypatch.setattr(torch.backends.quantized, "engine", "fbgemm")


@needs_fbgemm
@torch.inference_mode()
def test_int8_is_near_and_no_row_depends_on_the_others() -> None:
    torch.manual_seed(1)
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(3, 7, 64)
    x[0] *= 1000.0  # rows of other sizes are scaled by themselves
    for layer, exact in (
        (Int8Linear(weight, bias), F.linear(x, weight, bias)),
        (Int8Linear(weight, None), x @ weight.T),
    ):
        y = layer(x)
        assert ((y - exact).norm(dim=-1) / exact.norm(dim=-1)).max() < 0.03
        assert torch.equal(layer(x[1:2, 3:4]), y[1:2, 3:4])


@needs_fbgemm
@torch.inference_mode()
def test_int8_of_zeros_is_the_bias() -> None:
    bias = torch.randn(5)
    assert torch.equal(Int8Linear(torch.zeros(5, 8), bias)(torch.zeros(2, 8)), bias.expand(2, 5))


@needs_fbgemm
@torch.inference_mode()
def test_fp16_rounds_the_weights_only() -> None:
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(3, 7, 64)
    for layer, exact in (
        (Fp16Linear(weight, bias), F.linear(x, weight.half().float(), bias)),
        (Fp16Linear(weight, None), F.linear(x, weight.half().float())),
    ):
        assert_close(layer(x), exact)


@torch.inference_mode()
def test_onednn_gives_the_same_product() -> None:
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(3, 7, 64)
    assert_close(OneDnnLinear(weight, bias)(x), F.linear(x, weight, bias))
    assert_close(OneDnnLinear(weight, None)(x), F.linear(x, weight))


@needs_fbgemm
@torch.inference_mode()
@pytest.mark.parametrize(("precision", "near"), [("fp32", 1e-4), ("fp16", 1e-2), ("int8", 0.1)])
def test_a_packed_model_computes_what_the_plain_one_does(
    precision: str, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    src, tgt_in = sentences(7, 3, 5), sentences(4, 6, 2)
    plain, packed = (make().eval().float() for _ in range(2))
    packed.load_state_dict(plain.state_dict())
    pack(packed, precision)
    assert not any(isinstance(module, torch.nn.Linear) for module in packed.modules())
    exact = plain(*with_lengths(src), tgt_in)
    assert (packed(*with_lengths(src), tgt_in) - exact).norm() < near * exact.norm()


@torch.inference_mode()
def test_a_model_whose_parts_are_called_directly_computes_the_same() -> None:
    src, tgt_in = sentences(7, 3, 5), sentences(4, 6, 2)
    plain = make().eval()
    exact, found = (
        plain(*with_lengths(src), tgt_in),
        search(plain, *with_lengths(src), SearchConfig(beam=3, max_len_b=4)),
    )
    direct = call_directly(plain)
    assert torch.equal(direct(*with_lengths(src), tgt_in), exact)
    assert search(direct, *with_lengths(src), SearchConfig(beam=3, max_len_b=4)) == found
    assert not any(isinstance(module, (torch.nn.Linear, torch.nn.LayerNorm)) for module in direct.modules())


@needs_fbgemm
def test_int8_gives_a_sentence_what_it_gives_it_alone() -> None:
    model = pack(make().eval().float(), "int8")
    rows, config = sentences(7, 3, 5, 1), SearchConfig(beam=3, max_len_b=4)
    together = [found[0].ids for found in search(model, *with_lengths(rows), config)]
    alone = [search(model, *with_lengths(row[row != 0].unsqueeze(0)), config)[0][0].ids for row in rows]
    assert together == alone
    assert all(0 <= token < W for ids in together for token in ids)
