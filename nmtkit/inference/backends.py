"""The inference backends in torch, by architecture: the counterpart of `nmtkit.model.architectures`."""

from typing import TYPE_CHECKING

from nmtkit.errors import UserError
from nmtkit.inference.protocol import InferenceModel
from nmtkit.machine.threads import apply_to_torch
from nmtkit.model.config import TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig

if TYPE_CHECKING:
    from nmtkit.inference.torch_inference import TorchInference
    from nmtkit.model.translation_model import TranslationModel


def torch_backend(
    model: "TranslationModel", device: str | None = None, number_format: str | None = None
) -> InferenceModel:
    """Create an inference model that runs in torch. Moves the model to a device and a number format if given.

    Raises UserError for an architecture that cannot translate.
    """
    import torch  # imported late, since the compiled search needs no torch

    from nmtkit.inference.torch_backend import TorchBackend
    from nmtkit.inference.torch_convolutional import TorchConvolutional
    from nmtkit.inference.torch_recurrent import TorchRecurrent
    from nmtkit.inference.torch_transformer import TorchTransformer
    from nmtkit.machine.precision import DTYPES

    apply_to_torch()
    arch = model.config.arch
    backends: dict[str, type[TorchInference]] = {
        TransformerConfig.arch: TorchTransformer,
        RecurrentConfig.arch: TorchRecurrent,
        ConvolutionalConfig.arch: TorchConvolutional,
    }
    if arch not in backends:
        raise UserError(f"nmtkit cannot translate with models of the architecture {arch}")
    if device is not None:
        on = torch.device(device)
        model = model.to(on, None if number_format is None else DTYPES[number_format])
    return TorchBackend(backends[arch](model))
