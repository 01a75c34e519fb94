"""The table of architectures: options, presets, checkpoints, and what refuses an architecture by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from forged import header_of, members_of, with_header
from toy_model import Toy, ToyConfig

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.cli import train as train_command
from nmtkit.cli.options import flags, options
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.errors import UserError
from nmtkit.model.architectures import ARCHITECTURES, Architecture, config_from_dict, make_model
from nmtkit.model.config import TransformerConfig, model_differences
from nmtkit.model.presets import PRESETS, Preset

MakeCheckpoint = Callable[..., Checkpoint]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy in the two tables, as a new architecture would be."""
    monkeypatch.setitem(ARCHITECTURES, "toy", Architecture(ToyConfig, "toy_model:Toy"))
    monkeypatch.setitem(PRESETS, "toy", Preset(ToyConfig, {"label_smoothing": 0.2}))


def test_each_architecture_has_a_preset_with_its_name_and_defaults() -> None:
    for name, row in ARCHITECTURES.items():
        assert PRESETS[name].model_config() == row.config()
    assert {preset.config for preset in PRESETS.values()} == {row.config for row in ARCHITECTURES.values()}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_architectures_implement_the_protocol(arch: str) -> None:
    config, W = ARCHITECTURES[arch].config().for_vocabularies(joined=False), 11
    with torch.device("meta"):
        model = make_model(config, 7, W)
    assert model.config == config
    assert model.output_matrix.size(0) == W
    assert model.output_bias is None or model.output_bias.shape == (W,)
    assert sum(model.count_parameters().values()) == sum(parameter.numel() for parameter in model.parameters())
    assert {"output"} <= model.count_parameters().keys()
    within = {id(parameter) for layer in model.layers() for parameter in layer.parameters()}
    assert 0 < len(within) < len(list(model.parameters()))
    assert config.dropout_options <= config.free_options <= config.to_dict().keys()


def test_options_survive_a_round_trip_through_a_dict_with_the_architecture() -> None:
    config = TransformerConfig(heads=4, d_k=3)
    assert config.to_dict()["arch"] == "transformer"
    assert config_from_dict(config.to_dict()) == TransformerConfig.from_dict(config.to_dict()) == config


def test_another_architecture_is_the_only_difference_of_a_model() -> None:
    assert list(model_differences(ToyConfig(), TransformerConfig())) == ["its architecture is transformer, not toy"]


def test_an_unknown_architecture_is_refused_and_named() -> None:
    with pytest.raises(UserError, match="unknown architecture 'perceptron'"):
        config_from_dict({"arch": "perceptron"})


def test_a_checkpoint_written_before_architectures_had_names_is_a_transformer(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    save_checkpoint(tmp_path / "new.pt", checkpoint)
    content = (tmp_path / "new.pt").read_bytes()
    model = header_of(members_of(content))["model"]
    assert model.pop("arch") == "transformer"
    (tmp_path / "old.pt").write_bytes(with_header(content, {"model": model}))
    old = load_checkpoint(tmp_path / "old.pt")
    assert old.model_config == checkpoint.model_config
    assert Translator.from_checkpoint(tmp_path / "old.pt").translate(["the dog"]) == Translator.from_checkpoint(
        tmp_path / "new.pt"
    ).translate(["the dog"])


@pytest.fixture
def toy_checkpoint(toy: None, make_checkpoint: MakeCheckpoint) -> Checkpoint:
    transformer, config = make_checkpoint(), ToyConfig(depth=3)
    vocabulary = len(transformer.source.vocab)
    weights = dict(make_model(config, vocabulary, vocabulary).named_parameters())
    return replace(
        transformer, model_config=config, weights={name: weight.detach().numpy() for name, weight in weights.items()}
    )


def test_a_checkpoint_of_any_architecture_is_saved_and_loaded(toy_checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy.pt", toy_checkpoint)
    loaded = load_checkpoint(tmp_path / "toy.pt")
    assert loaded.model_config == toy_checkpoint.model_config
    model = loaded.build_model()
    assert isinstance(model, Toy)
    parameters = dict(model.named_parameters())
    assert list(parameters) == list(loaded.parameter_shapes())
    assert all(np.array_equal(parameters[name].detach(), weight) for name, weight in toy_checkpoint.weights.items())


def test_translation_and_export_refuse_and_name_other_architectures(toy_checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "toy.pt", toy_checkpoint)
    with pytest.raises(UserError, match="models of the architecture toy"):
        Translator.from_checkpoint(tmp_path / "toy.pt")
    with pytest.raises(UserError, match="not the architecture toy"):
        to_ctranslate2(toy_checkpoint, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def model_options(*arguments: str) -> dict[str, object]:
    """The model that nmt-train would make of its options, if it had the toy's as well."""

    @click.command()
    @click.option("--arch", default="transformer_base")
    @click.option("--label-smoothing", default=0.1)
    @flags(TransformerConfig, ToyConfig)
    @options(train_command.choose_model)
    def main(model: ToyConfig | TransformerConfig, label_smoothing: float) -> None:
        click.echo(json.dumps(model.to_dict() | {"label_smoothing": label_smoothing}))

    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.output)
    return found


@pytest.fixture
def toy_on_command_line(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_command, "MODEL_CONFIGS", (TransformerConfig, ToyConfig))


@pytest.mark.usefixtures("toy_on_command_line")
def test_an_architecture_on_the_command_line_has_its_own_options_defaults_and_preset() -> None:
    assert model_options("--arch", "toy") == ToyConfig().to_dict() | {"label_smoothing": 0.2}
    assert model_options("--arch", "toy", "--d-model", "5", "--depth", "1", "--label-smoothing", "0") == {
        **ToyConfig(d_model=5, depth=1).to_dict(),
        "label_smoothing": 0.0,
    }
    assert model_options("--d-model", "16") == TransformerConfig(d_model=16).to_dict() | {"label_smoothing": 0.1}


@pytest.mark.usefixtures("toy_on_command_line")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arch", "toy", "--heads", "4"), "--heads has no effect with --arch toy"),
        (("--depth", "4"), "--depth has no effect with --arch transformer_base"),
        (("--max-positions", "99"), "--max-positions has no effect with --positions sinusoidal"),
    ],
)
def test_options_of_another_architecture_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_options(*arguments)
