"""The table of inference backends, by architecture: the counterpart of `nmtkit.model.architectures`.

An architecture that can translate has a `TorchInference` and a row here, which imports it only when it is needed,
because the compiled search needs no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nmtkit.errors import UserError
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.protocol import InferenceModel
from nmtkit.machine.number_format import NumberFormat
from nmtkit.machine.threads import apply_to_torch
from nmtkit.model.config import TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig

if TYPE_CHECKING:
    from nmtkit.inference.torch_inference import TorchInference
    from nmtkit.model.translation_model import TranslationModel


def _transformer(model: Any) -> "TorchInference":
    from nmtkit.inference.torch_transformer import TorchTransformer

    return TorchTransformer(model)


def _recurrent(model: Any) -> "TorchInference":
    from nmtkit.inference.torch_recurrent import TorchRecurrent

    return TorchRecurrent(model)


def _convolutional(model: Any) -> "TorchInference":
    from nmtkit.inference.torch_convolutional import TorchConvolutional

    return TorchConvolutional(model)


class Backends(NamedTuple):
    """The backends that search with the models of an architecture."""

    torch: Callable[[Any], "TorchInference"]  # from a model, on its device: the reference
    native: type[NativeTransformer] | None = None  # compiled, for CPUs


BACKENDS = {
    TransformerConfig.arch: Backends(_transformer, NativeTransformer),
    RecurrentConfig.arch: Backends(_recurrent),
    ConvolutionalConfig.arch: Backends(_convolutional),
}


def backends_of(arch: str) -> Backends:
    """Return the backends of an architecture. Raises UserError if it has none."""
    if arch not in BACKENDS:
        raise UserError(f"nmtkit cannot translate with models of the architecture {arch}")
    return BACKENDS[arch]


def torch_backend(
    model: "TranslationModel", device: str | None = None, number_format: NumberFormat | None = None
) -> InferenceModel:
    """Create an inference model that runs in torch. Moves the model to a device and a number format if given.

    Raises UserError for an architecture that cannot translate.
    """
    import torch

    from nmtkit.inference.torch_backend import TorchBackend
    from nmtkit.machine.precision import DTYPES

    apply_to_torch()
    if device is not None:
        on = torch.device(device)
        model = model.to(on, None if number_format is None else DTYPES[number_format])
    return TorchBackend(backends_of(model.config.arch).torch(model))
