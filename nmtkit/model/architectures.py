"""The table of all architectures.

docs/architecture.md describes how to add one, and `tests/helpers/toy_model.py` is a small example. A row imports its
model only when a model is created, because reading a checkpoint needs no torch.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.wording import quoted

if TYPE_CHECKING:
    from nmtkit.model.translation_model import TranslationModel


def _model_in(module: str, name: str) -> Callable[[Any, int, int], "TranslationModel"]:
    """Return a function that creates a model of a class in nmtkit.model, and imports the class only when called."""
    return lambda *arguments: getattr(import_module(f"nmtkit.model.{module}"), name)(*arguments)


class Architecture(NamedTuple):
    """The classes of an architecture, a row of `ARCHITECTURES`."""

    config: type[ModelConfig]  # class of the options
    model: Callable[[Any, int, int], "TranslationModel"]  # from options, source and target vocabulary size


ARCHITECTURES = {
    TransformerConfig.arch: Architecture(TransformerConfig, _model_in("transformer", "Transformer")),
    RecurrentConfig.arch: Architecture(RecurrentConfig, _model_in("recurrent", "Recurrent")),
    ConvolutionalConfig.arch: Architecture(ConvolutionalConfig, _model_in("convolutional", "Convolutional")),
}


def make_model(config: ModelConfig, source_size: int, target_size: int) -> "TranslationModel":
    """Create a model with random weights. Raises UserError if the options do not fit the vocabularies."""
    return ARCHITECTURES[config.arch].model(config, source_size, target_size)


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """Create options from the values of `ModelConfig.to_dict`; without an architecture name, those of a Transformer.
    Raises UserError for an unknown architecture or option."""
    arch = values.get("arch", TransformerConfig.arch)
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture {quoted(arch)}: written by a newer version of nmtkit?")
    return ARCHITECTURES[arch].config.from_dict(values)
