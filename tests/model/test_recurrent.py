"""The recurrent model against a plain implementation of its equations."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from small_rivals import SMALL, assert_equal_to_reference, make
from torch import Tensor

from nmtkit.model.recurrent import Recurrent
from nmtkit.model.recurrent_config import RecurrentConfig

Weights = Mapping[str, Tensor]


def lstm(p: Weights, name: str, inputs: list[Tensor]) -> list[Tensor]:
    """The outputs of an LSTM, one input after the other."""
    h = c = torch.zeros_like(p[f"{name}.weight_hh_l0"][0])
    outputs = []
    for x in inputs:
        gates = p[f"{name}.weight_ih_l0"] @ x + p[f"{name}.bias_ih_l0"]
        gates = gates + p[f"{name}.weight_hh_l0"] @ h + p[f"{name}.bias_hh_l0"]
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return outputs


def encoded(p: Weights, layers: int, src: list[int]) -> list[Tensor]:
    x = [p["source_embedding.weight"][token] for token in src]
    ahead, back = lstm(p, "encoder.0.ahead", x), lstm(p, "encoder.0.back", x[::-1])[::-1]
    x = [torch.cat(both) for both in zip(ahead, back, strict=True)]
    x = lstm(p, "encoder.1.lstm", x)
    for layer in range(2, layers):
        x = [a + b for a, b in zip(x, lstm(p, f"encoder.{layer}.lstm", x), strict=True)]
    return x


def attended(p: Weights, query: Tensor, memory: list[Tensor]) -> Tensor:
    """The context of one query: g · v/‖v‖ · tanh(Wq·q + Wk·k + b)."""
    v = p["attention.gain"] * p["attention.direction"] / p["attention.direction"].square().sum().sqrt()
    scores = [
        v @ torch.tanh(p["attention.q.weight"] @ query + p["attention.k.weight"] @ key + p["attention.bias"])
        for key in memory
    ]
    weights = torch.stack(scores).softmax(0)
    return torch.stack([weight * value for weight, value in zip(weights, memory, strict=True)]).sum(0)


def reference(p: Weights, config: RecurrentConfig, src: list[int], tgt_in: list[int]) -> Tensor:
    """The logits (T, W) of one sentence pair."""
    memory = encoded(p, config.encoder_layers, src)
    x = lstm(p, "decoder.0.lstm", [p["target_embedding.weight"][token] for token in tgt_in])
    contexts = [attended(p, query, memory) for query in x]
    for layer in range(1, config.decoder_layers):
        y = lstm(p, f"decoder.{layer}.lstm", [torch.cat(both) for both in zip(x, contexts, strict=True)])
        x = y if layer == 1 else [a + b for a, b in zip(x, y, strict=True)]
    return torch.stack([p["projection.weight"] @ h + p["projection.bias"] for h in x])


@pytest.mark.parametrize("name", ["gnmt", "lstm_tied"])
def test_it_computes_the_published_equations(name: str) -> None:
    assert_equal_to_reference(make(name), reference)


def test_initial_weights_are_those_of_the_published_model() -> None:
    config = RecurrentConfig(**SMALL["gnmt"] | {"d_model": 64})
    torch.manual_seed(1)
    model = Recurrent(config, 50, 50)
    for name, parameter in model.named_parameters():
        if name not in ("attention.gain", "attention.bias"):
            assert 0.095 < parameter.abs().max() <= 0.1
    assert model.attention.gain.item() == 64**-0.5
    assert not model.attention.bias.any()


def test_eight_layers_cost_the_published_operations_for_a_pair_of_tokens() -> None:
    """Shazeer et al. (2017) count 214 million multiply-adds; here those of attention over positions are left out."""
    config, one = RecurrentConfig(encoder_layers=8, decoder_layers=8), np.array([1])
    over_positions = 2 * 1024
    assert config.forward_flops(32_000, one, one) / 2 - over_positions == pytest.approx(214e6, rel=0.02)
