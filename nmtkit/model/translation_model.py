"""The interface of a model for training, which each architecture implements.

Letters: B batch, S source length, T target length, D width of the decoder's output, W target vocabulary. Batch first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nmtkit.model.config import ModelConfig
from nmtkit.text.vocabulary import NEVER_OUTPUT


class TranslationModel(nn.Module, ABC):
    """An encoder-decoder model. `__init__(config, source_size, target_size)` initializes the weights at random.

    Sources are padded at the end; the ids of padding have no effect. Names and shapes of parameters are part of the
    checkpoint format. Buffers are not saved, so they must depend only on the options.
    """

    config: ModelConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    """The top-level modules of each part, to count parameters by part: each parameter belongs to one part. The part
    "output" is required; a matrix that it shares with an embedding counts as the embedding's."""
    graphs: ClassVar[tuple[str, ...]] = ()
    """The methods that `--compile` compiles, each as one graph. If empty, it compiles each of the `layers`."""
    activation_checkpointing = False  # recompute the activations inside `layers` in the backward pass

    @abstractmethod
    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        """Encode src (B, S), padded after lengths (B,) of at least 1, and return the memory."""

    @abstractmethod
    def decode(self, tgt_in: Tensor, memory: Any) -> Tensor:
        """Decode tgt_in (B, T), the target shifted right, and return the output (B, T, D) before the projection."""

    @property
    @abstractmethod
    def output_matrix(self) -> Tensor:
        """The projection to the target vocabulary (W, D). The loss fuses the product with the softmax."""

    @property
    def output_bias(self) -> Tensor | None:
        """The bias (W,) of the projection, or None."""
        return None

    @abstractmethod
    def layers(self) -> Iterable[nn.Module]:
        """Return the encoder layers, a separate attention if there is one, then the decoder layers."""

    def project(self, hidden: Tensor) -> Tensor:
        """Project the decoder's output (…, D) to logits (…, W), -inf for the ids of `NEVER_OUTPUT`."""
        return mask_never_output(F.linear(hidden, self.output_matrix, self.output_bias))

    def forward(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Compute logits (B, T, W) for src (B, S) with lengths (B,) and tgt_in (B, T)."""
        return self.project(self.decode(tgt_in, self.encode(src, lengths)))

    def through(self, layer: nn.Module, *inputs: Any) -> Any:
        """Apply a layer, with activation checkpointing if it is enabled."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def count_parameters(self) -> dict[str, int]:
        """Return the number of parameters of each part by name. A shared matrix counts once, under its first name."""
        counts = dict.fromkeys(self.parts, 0)
        for name, parameter in self.named_parameters():
            (part,) = (part for part, modules in self.parts.items() if name.split(".")[0] in modules)
            counts[part] += parameter.numel()
        return counts


def mask_never_output(logits: Tensor) -> Tensor:
    """Exclude the ids of `NEVER_OUTPUT` from the softmax: set their logits (…, W) to -inf, in place."""
    for number in NEVER_OUTPUT:
        logits[..., number] = -torch.inf
    return logits
