"""Options that are added to the model later: exports refuse them by name, and never write a wrong model."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from nmtkit.checkpoint import Checkpoint
from nmtkit.config import option
from nmtkit.conversion.ctranslate2 import to_ctranslate2
from nmtkit.conversion.huggingface_export import to_huggingface
from nmtkit.conversion.safetensors import to_safetensors
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig

pytest.importorskip("ctranslate2")
pytest.importorskip("safetensors")
EXPORTS = [to_ctranslate2, to_huggingface]


@dataclass(frozen=True)
class NewConfig(TransformerConfig):
    """A Transformer with one more option."""

    norm_kind: str = option("layer", choices=("layer", "rms"), help="Of layer norms.")


def with_new_option(checkpoint: Checkpoint) -> Checkpoint:
    values = {field.name: getattr(checkpoint.model_config, field.name) for field in fields(TransformerConfig)}
    return replace(checkpoint, model_config=NewConfig(**values, norm_kind="rms"))


@pytest.mark.parametrize("export", EXPORTS)
def test_an_option_that_an_export_does_not_know_is_refused_by_name(
    export: Callable[..., None], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="--norm-kind rms"):
        export(with_new_option(make_checkpoint()), tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("name", ["qk_norm", "norm", "share_embeddings"])
def test_a_value_that_an_export_does_not_know_is_refused_by_name(
    name: str, export: Callable[..., None], make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    config = replace(checkpoint.model_config)
    object.__setattr__(config, name, "rotary")  # no choice yet
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} rotary"):
        export(replace(checkpoint, model_config=config), tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


def test_safetensors_contain_every_option(make_checkpoint: Callable[..., Checkpoint], tmp_path: Path) -> None:
    to_safetensors(with_new_option(make_checkpoint()), tmp_path / "exported")
    assert json.loads((tmp_path / "exported/config.json").read_text())["model"]["norm_kind"] == "rms"
