"""Presets: the published sizes and parameter counts, of the paper (Table 3) and of the models it compares with."""

import dataclasses

import pytest
import torch

from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training.config import OptimizerConfig, StopConfig

DEFAULT_VOCAB_SIZE = 40_700  # what the paper's own counts imply

# Millions of parameters, as Table 3 prints them; a row without a figure is "as base".
PAPER = {
    "transformer_base": 65,
    "transformer_big": 213,
    "table3_b_dk16": 58,
    "table3_b_dk32": 60,
    "table3_c_n2": 36,
    "table3_c_n4": 50,
    "table3_c_n8": 80,
    "table3_c_d256": 28,
    "table3_c_d1024": 168,
    "table3_c_ff1024": 53,
    "table3_c_ff4096": 90,
}
ROWS = ["transformer_base", "transformer_big", *(name for name in PRESETS if name.startswith("table3_"))]


def model_config(preset: str) -> TransformerConfig:
    config = PRESETS[preset].model_config()
    assert isinstance(config, TransformerConfig)
    return config


@pytest.mark.parametrize("preset", ROWS)
def test_parameter_counts_match_the_paper(preset: str) -> None:
    with torch.device("meta"):  # shapes without memory
        model = Transformer(model_config(preset), DEFAULT_VOCAB_SIZE, DEFAULT_VOCAB_SIZE)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    # learned positions come on top of the table's "as base"
    millions -= sum(p.numel() for name, p in model.named_parameters() if "positions" in name) / 1e6
    assert abs(millions - PAPER.get(preset, 65)) <= (6 if preset == "transformer_big" else 1)


def parameters(preset: str, source_size: int, target_size: int) -> int:
    with torch.device("meta"):
        model = make_model(PRESETS[preset].model_config(), source_size, target_size)
    return sum(parameter.numel() for parameter in model.parameters())


def test_gnmt_has_the_published_number_of_parameters() -> None:
    """NVIDIA's GNMT v2, with 32,320 joint pieces: 160,671,297 parameters (MLBench's blog)."""
    assert parameters("gnmt", 32_320, 32_320) == 160_671_297


def test_gnmt_is_optimized_as_published() -> None:
    options, config = PRESETS["gnmt"].options, RecurrentConfig()
    assert (options["lr"], options["clip_norm"], options["warmup_updates"]) == (2e-3, 5.0, 200)
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.dropout) == (4, 4, 1024, 0.2)


def test_convs2s_has_the_published_number_of_parameters() -> None:
    """216 million (Gehring et al. 2017), with fairseq's dictionaries."""
    assert parameters("convs2s", 42_243, 43_676) == pytest.approx(216e6, rel=0.001)


def test_the_defaults_are_the_base_model_of_the_paper() -> None:
    config, optimizer = TransformerConfig(), OptimizerConfig()
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.d_model, config.d_ff, config.heads) == (512, 2048, 8)
    assert (config.key_size, config.value_size, config.dropout) == (64, 64, 0.1)
    assert (config.attention_dropout, config.activation_dropout, config.attention_window) == (0, 0, None)
    assert (config.positions, config.norm) == ("sinusoidal", "post")
    assert config.for_vocabularies(joined=True).share_embeddings == "all"
    assert (optimizer.adam_beta1, optimizer.adam_beta2, optimizer.adam_eps) == (0.9, 0.98, 1e-9)
    assert (optimizer.lr_schedule, optimizer.warmup_updates, optimizer.label_smoothing) == ("paper", 4000, 0.1)
    assert (optimizer.weight_decay, optimizer.clip_norm, StopConfig().max_updates) == (0, 0, 100_000)


def test_the_big_preset_matches_the_paper() -> None:
    big = model_config("transformer_big")
    assert (big.d_model, big.d_ff, big.heads) == (1024, 4096, 16)
    assert (big.key_size, big.value_size, big.dropout) == (64, 64, 0.3)
    assert PRESETS["transformer_big"].options["max_updates"] == 300_000


@pytest.mark.parametrize("preset", ["lstm_small", "conv_small"])
def test_the_small_presets_are_of_one_size(preset: str) -> None:
    assert parameters(preset, 10_000, 10_000) == pytest.approx(
        parameters("transformer_small", 10_000, 10_000), rel=0.12
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_set_only_existing_options(preset: str) -> None:
    known = {
        field.name
        for config in (PRESETS[preset].config, OptimizerConfig, StopConfig)
        for field in dataclasses.fields(config)
    }
    assert set(PRESETS[preset].options) <= known
