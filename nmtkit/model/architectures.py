"""The table of all architectures.

docs/architecture.md describes how to add one, and `tests/helpers/toy_model.py` is a small example. A row imports its
model only when a model is created, because reading a checkpoint needs no torch.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.wording import quoted

if TYPE_CHECKING:
    from nmtkit.model.translation_model import TranslationModel


class Architecture(NamedTuple):
    """The classes of an architecture, a row of `ARCHITECTURES`."""

    config: type[ModelConfig]  # class of the options
    model: str  # class of the model, as module:class


ARCHITECTURES = {
    TransformerConfig.arch: Architecture(TransformerConfig, "nmtkit.model.transformer:Transformer"),
    RecurrentConfig.arch: Architecture(RecurrentConfig, "nmtkit.model.recurrent:Recurrent"),
    ConvolutionalConfig.arch: Architecture(ConvolutionalConfig, "nmtkit.model.convolutional:Convolutional"),
}


def make_model(config: ModelConfig, source_size: int, target_size: int) -> "TranslationModel":
    """Create a model with random weights. Raises UserError if the options do not fit the vocabularies."""
    model: TranslationModel = resolve_name(ARCHITECTURES[config.arch].model)(config, source_size, target_size)
    return model


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """Create options from the values of `ModelConfig.to_dict`; without an architecture name, those of a Transformer.
    Raises UserError for an unknown architecture or option."""
    arch = values.get("arch", TransformerConfig.arch)
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture {quoted(arch)}: written by a newer version of nmtkit?")
    return ARCHITECTURES[arch].config.from_dict(values)
