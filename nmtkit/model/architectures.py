"""The table of all architectures.

To add an architecture, write a subclass of `ModelConfig` with `forward_flops` and presets (presets.py), a
`TranslationModel` in its own file, and a row here. To translate, it also needs an `InferenceModel` and a row in
nmtkit.inference.backends. `tests/helpers/toy_model.py` is a small example.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional import Convolutional
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent import Recurrent
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.translation_model import TranslationModel
from nmtkit.wording import quoted


class Architecture(NamedTuple):
    """A row of the table."""

    config: type[ModelConfig]  # class of the options
    model: Callable[[Any, int, int], TranslationModel]  # from options, source and target vocabulary size


ARCHITECTURES = {
    TransformerConfig.arch: Architecture(TransformerConfig, Transformer),
    RecurrentConfig.arch: Architecture(RecurrentConfig, Recurrent),
    ConvolutionalConfig.arch: Architecture(ConvolutionalConfig, Convolutional),
}


def make_model(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """Create a model with random weights. Raises UserError if the options do not fit the vocabularies."""
    return ARCHITECTURES[config.arch].model(config, source_size, target_size)


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """Create the options from the values of `ModelConfig.to_dict`; without an architecture name, a Transformer's.

    Raises UserError for an unknown architecture or option.
    """
    arch = values.get("arch", TransformerConfig.arch)
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture {quoted(arch)}: written by a newer version of nmtkit?")
    return ARCHITECTURES[arch].config.from_dict(values)
