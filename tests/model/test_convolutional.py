"""The convolutional model against a plain implementation of its equations, and its options."""

import math
from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from small_rivals import assert_equal_to_reference, make
from small_transformers import sentences
from torch import Tensor
from torch.testing import assert_close

from nmtkit.errors import UserError
from nmtkit.model.config import model_differences
from nmtkit.model.convolutional import Convolutional, GatedConvolution, NormalizedLinear, WeightNorm
from nmtkit.model.convolutional_config import ConvolutionalConfig

Weights = Mapping[str, Tensor]
Vectors = list[Tensor]
HALF = math.sqrt(0.5)


def weight(p: Weights, name: str) -> Tensor:
    """g · V/‖V‖, output by output."""
    rows = zip(p[f"{name}.gain"], p[f"{name}.direction"], strict=True)
    return torch.stack([g * v / v.square().sum().sqrt() for g, v in rows])


def linear(p: Weights, name: str, x: Tensor) -> Tensor:
    return weight(p, name) @ x + p[f"{name}.bias"]


def embedded(p: Weights, side: str, ids: list[int]) -> Vectors:
    return [p[f"{side}_embedding.weight"][token] + p[f"{side}_positions.table"][i] for i, token in enumerate(ids)]


def convolved(p: Weights, name: str, x: Vectors, before: int) -> Vectors:
    """The gated convolution of x, with so many zeros before it and as many after it as the kernel needs."""
    w, zero = weight(p, f"{name}.convolution"), torch.zeros_like(x[0])
    k = w.size(2)
    padded = [zero] * before + x + [zero] * (k - 1 - before)
    outputs = []
    for position in range(len(x)):
        y = sum(w[:, :, j] @ padded[position + j] for j in range(k)) + p[f"{name}.convolution.bias"]
        a, b = y.chunk(2)
        outputs.append(a * torch.sigmoid(b))
    return outputs


def with_residual(p: Weights, name: str, x: Vectors, y: Vectors) -> Vectors:
    if f"{name}.residual.gain" in p:
        x = [linear(p, f"{name}.residual", one) for one in x]
    return [(a + b) * HALF for a, b in zip(x, y, strict=True)]


def reference(p: Weights, config: ConvolutionalConfig, src: list[int], tgt_in: list[int]) -> Tensor:
    """The logits (T, W) of one sentence pair."""
    e = embedded(p, "source", src)
    x = [linear(p, "encoder_in", one) for one in e]
    for number, shape in enumerate(config.encoder_layers):
        name = f"encoder.{number}"
        x = with_residual(p, name, x, convolved(p, name, x, before=(shape.kernel - 1) // 2))
    z = [linear(p, "encoder_out", one) for one in x]
    values = [(a + b) * HALF for a, b in zip(z, e, strict=True)]

    g = embedded(p, "target", tgt_in)
    x = [linear(p, "decoder_in", one) for one in g]
    for number, shape in enumerate(config.decoder_layers):
        name = f"decoder.{number}"
        attended = []
        for h, embedding in zip(convolved(p, name, x, before=shape.kernel - 1), g, strict=True):
            query = (linear(p, f"{name}.attention.query", h) + embedding) * HALF
            weights = torch.stack([query @ key for key in z]).softmax(0)
            context = torch.stack([a * v for a, v in zip(weights, values, strict=True)]).sum(0)
            context = context * len(src) * math.sqrt(1 / len(src))
            attended.append((linear(p, f"{name}.attention.out", context) + h) * HALF)
        x = with_residual(p, name, x, attended)
    bottleneck = [linear(p, "decoder_out", one) for one in x]
    if "projection.weight" in p:
        return torch.stack([p["projection.weight"] @ h + p["projection.bias"] for h in bottleneck])
    return torch.stack([linear(p, "projection", h) for h in bottleneck])


@pytest.mark.parametrize("name", ["convs2s", "conv_tied"])
def test_it_computes_the_published_equations(name: str) -> None:
    assert_equal_to_reference(make(name), reference)


def test_the_gradient_of_the_encoder_is_divided_by_the_readings_of_attention() -> None:
    """Two for each decoder layer; the gradient of the source embeddings in the values of attention is not divided."""
    model = make("convs2s", share_embeddings="none")
    assert isinstance(model, Convolutional)
    memory = model.encode(sentences(5), torch.tensor([5]))
    of_keys, of_values = torch.randn_like(memory.keys), torch.randn_like(memory.values)
    (into_bias,) = torch.autograd.grad(
        (memory.keys, memory.values), model.encoder_out.bias, (of_keys, of_values), retain_graph=True
    )
    assert_close(into_bias, (of_keys + HALF * of_values).sum((0, 1)) / (2 * 4))
    torch.nn.init.zeros_(model.encoder_in.gain)  # type: ignore[arg-type]
    memory = model.encode(sentences(5), torch.tensor([5]))
    (into_positions,) = torch.autograd.grad(memory.values, model.source_positions.table, of_values)
    assert_close(into_positions[:5], HALF * of_values[0])


def test_initial_weights_keep_the_variance_of_the_published_model() -> None:
    torch.manual_seed(1)
    config = ConvolutionalConfig(
        encoder_convolutions="1x300", decoder_convolutions="1x300", d_model=200, d_bottleneck=100, dropout=0.2
    )
    model = Convolutional(config, 500, 500)
    for module in model.modules():
        if isinstance(module, WeightNorm):
            assert not module.bias.any()
            assert_close(module.weight, module.direction)
    expected = {
        "encoder_in": math.sqrt(0.8 / 200),
        "encoder.0.convolution": math.sqrt(4 * 0.8 / (3 * 300)),
        "encoder_out": math.sqrt(1 / 300),
        "decoder.0.attention.query": math.sqrt(1 / 300),
        "decoder.0.attention.out": math.sqrt(1 / 200),
        "decoder_out": math.sqrt(1 / 300),
        "projection": math.sqrt(0.8 / 100),
    }
    for name, deviation in expected.items():
        module = model.get_submodule(name)
        assert isinstance(module, NormalizedLinear | GatedConvolution)
        assert module.direction.std().item() == pytest.approx(deviation, rel=0.03)
    assert model.target_embedding.weight.std().item() == pytest.approx(0.1, rel=0.03)


def test_the_defaults_are_the_layers_of_fairseqs_model_for_english_german() -> None:
    layers = ConvolutionalConfig().encoder_layers
    assert layers == ConvolutionalConfig().decoder_layers
    assert [shape[1:] for shape in layers] == [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2
    assert all(upper.inputs == lower.channels for lower, upper in pairwise(layers))


@pytest.mark.parametrize("text", ["", "512", "0x512", "3x512:0", "3x512,"])
def test_a_malformed_list_of_layers_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--decoder-convolutions .*: expected LAYERSxCHANNELS"):
        ConvolutionalConfig(decoder_convolutions=text)


def test_the_same_layers_in_other_words_are_the_same_model() -> None:
    one, other = (ConvolutionalConfig(encoder_convolutions=text) for text in ("3x512,1x64", " 1x512:3,2x512, 1x64:3"))
    assert list(model_differences(one, other)) == []
    assert len(list(model_differences(one, ConvolutionalConfig(encoder_convolutions="3x512,1x64:2")))) == 1


def test_too_many_layers_are_refused() -> None:
    with pytest.raises(UserError, match="at most 100 layers"):
        ConvolutionalConfig(encoder_convolutions="60x4,41x4")


def test_a_tied_output_has_the_width_of_the_embeddings() -> None:
    assert ConvolutionalConfig(separate_output=False, d_model=96).output_width == 96
    assert ConvolutionalConfig(d_model=96, d_bottleneck=64).output_width == 64
