"""Every choice of every option of a Transformer, in the steps of torch, the compiled search and each export: the
log-probabilities of the model itself, or a refusal that names the option."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from in_tensors import InTensors
from prefix_models import with_lengths
from step_by_step import StepByStep
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.config import flag, option
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.safetensors import from_safetensors, to_safetensors
from nmtkit.errors import UserError
from nmtkit.inference.loading import load_model
from nmtkit.inference.native_transformer import unknown_options
from nmtkit.inference.torch_backend import TorchBackend
from nmtkit.inference.torch_inference import shift_right
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS

Make = Callable[..., Checkpoint]

OTHER_VALUES: dict[str, tuple[object, ...]] = {  # of the options that have no list of choices
    "encoder_layers": (1, 3),
    "decoder_layers": (1, 3),
    "d_model": (8, 24),
    "d_ff": (7, 40),
    "heads": (1, 4),
    "d_k": (3, 20),
    "d_v": (2, 20),
    "dropout": (0.5,),
    "attention_dropout": (0.5,),
    "activation_dropout": (0.5,),
    "max_positions": (20,),
    "output_bias": (False, True),
    "embedding_scale": (1.0, 3.5),
    "embedding_norm": (False, True),
    "norm_epsilon": (1e-6, 0.1),
    "source_end": (False, True),
    "attention_window": (None, 2),
    "qk_norm": (False, True),
    "bias": (False, True),
}
MODERN = {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary", "bias": False}


def values_of(field: Any) -> tuple[object, ...]:
    """The values to try. KeyError for an option that is new: add it to OTHER_VALUES."""
    return tuple(field.metadata["choices"]) or OTHER_VALUES[field.name]


CHOICES = [(field.name, value) for field in fields(TransformerConfig) for value in values_of(field)]
CHOICES.append(("activation", MODERN))
every_choice = pytest.mark.parametrize(("name", "value"), CHOICES, ids=[f"{name} {value}" for name, value in CHOICES])


@pytest.fixture
def checkpoint(name: str, value: object, make_checkpoint: Make) -> Checkpoint:
    """A model with one option changed, or several, whose biases are not 0 and whose tokens differ clearly."""
    made = make_checkpoint(**({"max_positions": 60} | (value if isinstance(value, dict) else {name: value})))
    generator = torch.Generator().manual_seed(1)
    for weight in made.weights.values():
        weight += torch.randn(weight.shape, generator=generator).numpy() * 0.1
    return made


def batch(checkpoint: Checkpoint) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources and targets that end with EOS, with their lengths."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(len(SPECIALS), len(checkpoint.source.vocab), (3, 9), generator=generator)
    ids[:, -1] = EOS
    ids[1, 3:] = torch.tensor([EOS, *[PAD] * 5])
    return *with_lengths(ids), *with_lengths(ids.flip(0))


@torch.inference_mode()
def by_the_model(checkpoint: Checkpoint) -> Tensor:
    """The log-probability of each target token by one pass of the model, 0 beyond a target's end."""
    model, (src, lengths, tgt, _) = checkpoint.build_model().eval(), batch(checkpoint)
    log_probs: Tensor = model(src, lengths, shift_right(tgt)).log_softmax(-1).gather(2, tgt.unsqueeze(2)).squeeze(2)
    return log_probs.masked_fill(tgt == PAD, 0.0)


@torch.inference_mode()
def by_steps(checkpoint: Checkpoint, precision: str) -> Tensor:
    """The same, step by step as a search computes them."""
    tgt = batch(checkpoint)[2]
    log_probs: Tensor = InTensors(StepByStep(load_model(checkpoint, "cpu", precision))).score(*batch(checkpoint))
    return log_probs.masked_fill(tgt == PAD, 0.0)


def refuses(name: str, call: Callable[[], object]) -> bool:
    """Whether a call refuses the option, by its name or by the width of the heads that it sets."""
    try:
        call()
    except UserError as error:
        reason = str(error)
    else:
        return False
    assert flag(name) in reason or (name in ("d_k", "d_v") and "heads of" in reason), reason
    return True


@every_choice
def test_steps_compute_the_log_probabilities_of_the_model_in_fp32_and_nearly_in_int8_or_refuse(
    name: str, checkpoint: Checkpoint
) -> None:
    expected = by_the_model(checkpoint)
    torch.testing.assert_close(by_steps(checkpoint, "fp32"), expected, rtol=0, atol=1e-4)
    if not refuses(name, lambda: load_model(checkpoint, "cpu", "int8")):
        errors = (by_steps(checkpoint, "int8") - expected).abs()
        assert errors.max() < 0.3
        assert errors.mean() < 0.06


@every_choice
def test_each_export_computes_the_log_probabilities_of_the_model_or_refuses(
    name: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for package in ("ctranslate2", "safetensors", "transformers"):
        pytest.importorskip(package)
    expected = by_the_model(checkpoint)
    for make_export, engine in ((to_ctranslate2, by_ctranslate2), (to_huggingface, by_transformers)):
        folder = tmp_path / engine.__name__
        if not refuses(name, partial(make_export, checkpoint, folder)):
            torch.testing.assert_close(engine(checkpoint, folder), expected, rtol=0, atol=1e-4)
    to_safetensors(checkpoint, tmp_path / "safetensors")
    torch.testing.assert_close(by_the_model(from_safetensors(tmp_path / "safetensors")), expected, rtol=0, atol=0)


def by_ctranslate2(checkpoint: Checkpoint, folder: Path) -> Tensor:
    """As `by_the_model`, by the other engine."""
    engine = import_module("ctranslate2").Translator(str(folder), device="cpu", intra_threads=1)
    sources, targets = (
        [checkpoint.source.vocab.to_pieces(row[: length - 1].tolist()) for row, length in zip(*side, strict=True)]
        for side in (batch(checkpoint)[:2], batch(checkpoint)[2:])
    )
    rows = [torch.tensor(scored.log_probs) for scored in engine.score_batch(sources, targets)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@torch.inference_mode()
def by_transformers(checkpoint: Checkpoint, folder: Path) -> Tensor:
    """As `by_the_model`, by Hugging Face's Marian."""
    transformers: Any = import_module("transformers")
    model = transformers.MarianMTModel.from_pretrained(folder)
    vocabulary = transformers.MarianTokenizer.from_pretrained(folder).encoder
    names = {BOS: "<pad>", EOS: "</s>"}
    own = enumerate(checkpoint.source.vocab.pieces)
    order = torch.tensor([vocabulary[names.get(number, piece)] for number, piece in own])
    src, _, tgt, _ = batch(checkpoint)
    inputs = order[shift_right(tgt)]
    logits = model(order[src], attention_mask=(src != PAD).long(), decoder_input_ids=inputs).logits
    log_probs: Tensor = logits.log_softmax(-1).gather(2, order[tgt].unsqueeze(2)).squeeze(2)
    return log_probs.masked_fill(tgt == PAD, 0.0)


# New options, which the compiled search cannot know ---------------------------------------------------------------


@dataclass(frozen=True)
class WithNewField(TransformerConfig):
    alibi: bool = option(False, help="Biases by distance.")


@dataclass(frozen=True)
class WithNewChoice(TransformerConfig):
    positions: str = option("alibi", choices=("sinusoidal", "alibi"), help="Positions.")


@pytest.mark.parametrize(("kind", "named"), [(WithNewField, "--alibi"), (WithNewChoice, "--positions")])
def test_a_new_option_or_a_new_choice_falls_back_to_torch_and_is_refused_in_int8(
    kind: type[TransformerConfig], named: str, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, config = make_checkpoint(), kind(encoder_layers=1, decoder_layers=1, d_model=16, heads=2)
    made = replace(made, model_config=config)
    model = Transformer(config, len(made.source.vocab), len(made.source.vocab))
    monkeypatch.setattr(Checkpoint, "build_model", lambda checkpoint, weights="auto": model)
    assert unknown_options(config)
    assert isinstance(load_model(made, "cpu", "fp32"), TorchBackend)
    with pytest.raises(UserError, match=named):
        load_model(made, "cpu", "int8")
