"""The table of architectures: the one place that lists them all.

A new architecture is a subclass of `ModelConfig` (config.py) with presets (presets.py), a `TranslationModel` in a file
of its own, and a row here. To be searched, it needs an `InferenceModel` and a row in nmtkit.inference.backends.
`tests/helpers/toy_model.py` is a small example.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.protocol import TranslationModel
from nmtkit.model.transformer import Transformer


class Architecture(NamedTuple):
    """The class of its options, and the constructor of its model from options, source and target vocabulary size."""

    config: type[ModelConfig]
    model: Callable[[Any, int, int], TranslationModel]


ARCHITECTURES = {
    TransformerConfig.arch: Architecture(TransformerConfig, Transformer),
}


def make_model(config: ModelConfig, source_size: int, target_size: int) -> TranslationModel:
    """A model with weights from torch's generator; UserError where its options do not fit the vocabularies."""
    return ARCHITECTURES[config.arch].model(config, source_size, target_size)


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """The inverse of `ModelConfig.to_dict`. Options without a name, of older checkpoints, are a Transformer's.

    UserError for an unknown architecture or option.
    """
    arch = values.get("arch", TransformerConfig.arch)
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture {arch!r}: written by a newer version of nmtkit?")
    return ARCHITECTURES[arch].config.from_dict(values)
