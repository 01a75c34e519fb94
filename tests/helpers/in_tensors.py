"""The search and its models for tests that compare them with torch: tensors in, tensors out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.decoding import search as arrays
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.protocol import InferenceModel
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights


def array(value: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return np.ascontiguousarray(value.cpu().numpy()) if isinstance(value, Tensor) else value


def tensor(value: Any) -> Any:
    """An array as a tensor of its own; anything else as it is."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def search(model: InferenceModel, src: Tensor, lengths: Tensor, *options: Any, **named: Any) -> list[list[Hypothesis]]:
    """As `nmtkit.decoding.search.search`."""
    return arrays.search(unwrapped(model), array(src), array(lengths), *options, **named)


def native(model: Transformer, precision: str, reference: Callable[[], InferenceModel]) -> NativeTransformer:
    """The compiled search of a model of torch."""
    return NativeTransformer(model.config, as_arrays(collect_weights(model.float())), precision, reference)


def compiled(model: Transformer, precision: str = "fp32") -> NativeTransformer:
    """The compiled search of a model of torch, which also shows its attention."""
    return native(model, precision, lambda: torch_backend(model))


class InTensors:
    """A model whose methods take and return tensors."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.model, name)
        if not callable(own):
            return own

        def call(*arguments: Any) -> Any:
            with torch.inference_mode():
                result = own(*(array(unwrapped(argument)) for argument in arguments))
            if name in ("encode", "start"):
                return InTensors(result) if hasattr(result, "reorder") else result
            if isinstance(result, tuple):
                return tuple(map(tensor, result))
            if hasattr(result, "cross"):
                return type(result)(**{kind: [*map(tensor, layers)] for kind, layers in vars(result).items()})
            return tensor(result)

        return call


def unwrapped(value: Any) -> Any:
    """The model or state in an `InTensors`."""
    return value.model if isinstance(value, InTensors) else value
