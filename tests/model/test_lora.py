"""Low-rank adaptation: the model it starts from, its gradients, and merged weights, against explicit matrices."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.lora import add_low_rank
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.parameters import merged
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.translation_model import TranslationModel
from nmtkit.model.weights import as_arrays, as_tensors, collect_weights
from nmtkit.text.tokenizer import Tokenizer

CONFIG = TransformerConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=12, heads=2, d_k=3, d_v=5, dropout=0.0)
EVERYWHERE = LoraConfig(lora_rank=3, lora_alpha=2.0, lora_targets=("*",))
LAYERS = [
    CONFIG,
    replace(CONFIG, activation="swiglu", norm_type="rms", bias=False),
    replace(CONFIG, decoder_recurrence="ssru"),
]
SIZE = 14


def make(config: ModelConfig = CONFIG) -> TranslationModel:
    torch.manual_seed(1)
    return make_model(config, SIZE, SIZE)


def adapted(lora: LoraConfig, config: ModelConfig = CONFIG, random_b: bool = True) -> TranslationModel:
    """The model of `make` with additions, whose B is not 0 if `random_b`."""
    model = make(config)
    add_low_rank(model, lora)
    if random_b:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_b." in name:
                    parameter.normal_()
    return model


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randint(4, SIZE, (3, 6)), torch.tensor([6, 4, 2]), torch.randint(4, SIZE, (3, 5))


def logits(model: TranslationModel) -> Tensor:
    masked: Tensor = model(*batch())
    return masked[..., 3:]  # some of the first ids have logits of -inf


def explicit(lora: LoraConfig, model: TranslationModel) -> Iterator[tuple[str, Tensor]]:
    """The dense addition s·B·A of each adapted matrix, block by block."""
    weights = dict(model.named_parameters())
    for name in weights:
        if name.endswith(".lora_a.0"):
            layer = name.removesuffix(".lora_a.0")
            blocks = sum(other.startswith(f"{layer}.lora_a.") for other in weights)
            pairs = [(weights[f"{layer}.lora_b.{i}"], weights[f"{layer}.lora_a.{i}"]) for i in range(blocks)]
            assert lora.lora_alpha is not None
            yield f"{layer}.weight", lora.lora_alpha / lora.lora_rank * torch.vstack([b @ a for b, a in pairs])


@pytest.mark.parametrize("config", [CONFIG, RecurrentConfig(encoder_layers=2, decoder_layers=2, d_model=8)])
def test_with_b_zero_the_outputs_are_those_of_the_base_model(config: ModelConfig) -> None:
    base, model = make(config).eval(), adapted(EVERYWHERE, config, random_b=False).eval()
    assert any(".lora_a." in name for name, _ in model.named_parameters())
    assert torch.equal(logits(model), logits(base))


def test_outputs_and_gradients_equal_those_of_an_explicit_dense_matrix() -> None:
    model, dense = adapted(EVERYWHERE), make()
    additions = dict(explicit(EVERYWHERE, model))
    assert len(additions) == 2 * 4 + 2 * 7  # matrices of an encoder and of a decoder layer
    of_queries_keys_values = (model.get_parameter(f"decoder.1.self_attention.qkv.lora_b.{i}") for i in range(3))
    assert [len(b) for b in of_queries_keys_values] == [6, 6, 10]
    weights = {name: weight + additions.get(name, 0.0) for name, weight in dense.named_parameters()}
    expected, ours = functional_call(dense, weights, batch())[..., 3:], logits(model)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    torch.manual_seed(3)
    direction = torch.randn_like(ours)
    ours_by = torch.autograd.grad((ours * direction).sum(), [*trained.values()])
    theirs_by = torch.autograd.grad((expected * direction).sum(), [*trained.values()])
    for name, our, their in zip(trained, ours_by, theirs_by, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5, msg=name)


def test_only_additions_and_named_parameters_are_trained() -> None:
    model = adapted(LoraConfig(lora_rank=2, lora_train=("source_embedding.*", "*.norm.bias")))
    for name, parameter in model.named_parameters():
        expected = ".lora_" in name or "embedding" in name or name.endswith(".norm.bias")
        assert parameter.requires_grad == expected, name


@pytest.mark.parametrize(
    ("lora", "config", "message"),
    [
        (LoraConfig(lora_rank=2, lora_targets=("*attention*", "none.*")), CONFIG, "--lora-targets none.*encoder.0"),
        (LoraConfig(lora_rank=2, lora_train=("none",)), CONFIG, "--lora-train none: no parameter matches"),
        (LoraConfig(lora_rank=2, lora_targets=("projection.*",)), RecurrentConfig(), "--lora-targets projection"),
        (LoraConfig(lora_rank=2), ConvolutionalConfig(), "convs2s has no linear layers"),
    ],
)
def test_a_pattern_without_a_match_is_refused(lora: LoraConfig, config: ModelConfig, message: str) -> None:
    with torch.device("meta"):
        model = make_model(config, SIZE, SIZE)
        with pytest.raises(UserError, match=message):
            add_low_rank(model, lora)


@pytest.mark.parametrize(
    "lora",
    [
        EVERYWHERE,
        LoraConfig(lora_rank=1),
        LoraConfig(lora_rank=4, lora_targets=("encoder.1.*", "decoder.0.cross_attention.kv.weight")),
    ],
)
@pytest.mark.parametrize("config", LAYERS)
def test_merged_weights_give_the_outputs_of_the_adapted_model(config: TransformerConfig, lora: LoraConfig) -> None:
    model, base = adapted(lora, config), make(config)
    weights = as_tensors(merged(as_arrays(collect_weights(model)), lora.scale))
    assert weights.keys() == collect_weights(base).keys()
    torch.testing.assert_close(functional_call(base, weights, batch())[..., 3:], logits(model), rtol=0, atol=1e-5)


def test_a_checkpoint_keeps_base_weights_and_additions_and_is_loaded_merged(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lora = LoraConfig(lora_rank=2, lora_targets=("encoder.0.*", "*feed_forward.outer*"))
    model = make_model(CONFIG, len(tokenizer.vocab), len(tokenizer.vocab))
    add_low_rank(model, lora)
    weights = {name: torch.randn_like(weight) for name, weight in collect_weights(model).items()}
    ema = {name: torch.randn_like(weight) for name, weight in weights.items()}
    given = Checkpoint(CONFIG, as_arrays(weights), "en", "de", tokenizer, tokenizer, {}, {}, as_arrays(ema), lora)
    save_checkpoint(tmp_path / "a.pt", given)
    separate, loaded = load_checkpoint(tmp_path / "a.pt", merge=False), load_checkpoint(tmp_path / "a.pt")
    assert separate.lora == lora
    assert all(np.array_equal(separate.weights[name], weight) for name, weight in weights.items())
    assert loaded.lora is None
    assert loaded.optimizer is None
    for ours, trained in ((loaded.weights, weights), (loaded.ema, ema)):
        expected = merged(as_arrays(trained), lora.scale)
        assert ours is not None
        assert all(np.array_equal(ours[name], weight) for name, weight in expected.items())
    loaded.build_model()
