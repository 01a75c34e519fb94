"""The table of inference backends, by architecture: the counterpart of `nmtkit.model.architectures`.

An architecture that can be searched has an `InferenceModel` for plain torch, and a row here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_convolutional import TorchConvolutional
from nmtkit.inference.torch_recurrent import TorchRecurrent
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.model.config import TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.translation_model import TranslationModel


class Backends(NamedTuple):
    """How the models of an architecture are searched."""

    torch: Callable[[Any], InferenceModel]  # from a model, on its device: the reference
    native: type[NativeTransformer] | None = None  # compiled, for CPUs


BACKENDS = {
    TransformerConfig.arch: Backends(TorchTransformer, NativeTransformer),
    RecurrentConfig.arch: Backends(TorchRecurrent),
    ConvolutionalConfig.arch: Backends(TorchConvolutional),
}


def backends_of(arch: str) -> Backends:
    """The backends of an architecture; UserError if it has none."""
    if arch not in BACKENDS:
        raise UserError(f"nmtkit cannot translate with models of the architecture {arch}")
    return BACKENDS[arch]


def torch_backend(model: TranslationModel) -> InferenceModel:
    """A model made searchable by plain torch; UserError for an architecture that cannot be searched."""
    return backends_of(model.config.arch).torch(model)
