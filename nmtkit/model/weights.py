"""Converts weights between torch modules and the arrays of a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.model.lora import add_low_rank
from nmtkit.model.lora_config import LoraConfig
from nmtkit.model.parameters import check_weights
from nmtkit.model.translation_model import TranslationModel

_RANDOM_INIT = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


class _NoRandomInit(TorchFunctionMode):
    """Skips random initialization, the slowest part of creating a model whose weights are overwritten anyway."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _RANDOM_INIT:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return tensors (…) as arrays. Contiguous tensors on the CPU share their memory with the arrays."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return arrays (…) as tensors on the CPU that share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def build_model(
    config: ModelConfig, source_size: int, target_size: int, weights: Mapping[str, NDArray[np.float32]]
) -> TranslationModel:
    """Build the model that the options describe with these weights (…), in evaluation mode.

    Raises UserError if the weights do not fit the model.
    """
    with _NoRandomInit():
        model = make_model(config, source_size, target_size)
    load_weights(model, weights)
    return model.eval()


def module_shapes(
    config: ModelConfig, source_size: int, target_size: int, lora: LoraConfig | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of the model that the options describe, in the model's order."""
    with torch.device("meta"), _NoRandomInit():
        model = make_model(config, source_size, target_size)
        if lora is not None:
            add_low_rank(model, lora)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters (…) by name; a shared matrix appears once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Copy weights (…) into a model. Raises UserError like `check_weights`."""
    parameters = dict(model.named_parameters())
    check_weights(weights, {name: tuple(parameter.shape) for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        parameter.copy_(torch.from_numpy(weights[name]))
