"""The interface between training and a model, which each architecture implements.

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
from nmtkit.model.packed_attention import Packing
from nmtkit.text.vocabulary import NEVER_OUTPUT


class TranslationModel(nn.Module, ABC):
    """An encoder-decoder model. `__init__(config, source_size, target_size)` initializes the weights at random.

    Sources are padded at the end; the ids of padding have no effect. Names and shapes of parameters are part of the
    checkpoint format. Buffers are not saved: they must follow from the options.
    """

    config: ModelConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    """The top-level modules of each part of the model, for the parameter summary: every parameter is in one part. The
    part "output" is required; a matrix that it shares with an embedding counts as the embedding's."""
    graphs: ClassVar[tuple[str, ...]] = ()
    """The methods that `--compile` compiles, each as one graph. Without any, it compiles the `layers` separately."""
    activation_checkpointing = False  # recompute the activations inside `layers` in the backward pass

    @abstractmethod
    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        """Encode src (B, S), in which sentence b has lengths[b] ≥ 1 tokens, then padding. Returns the memory."""

    @abstractmethod
    def decode(self, tgt_in: Tensor, memory: Any) -> Tensor:
        """The decoder's output (B, T, D) before the projection, for the target shifted right, tgt_in (B, T)."""

    def decode_packed(self, src: Tensor, source: Packing, tgt_in: Tensor, target: Packing) -> Tensor:
        """The decoder's output (T, D) for packed sentences: src (S,) and tgt_in (T,), with equally many sentences.

        Only architectures for which `--packing` is allowed implement it.
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def output_matrix(self) -> Tensor:
        """The projection to the target vocabulary (W, D). The loss fuses product and softmax."""

    @property
    def output_bias(self) -> Tensor | None:
        """The bias (W,) of the projection; None if it has none."""
        return None

    @abstractmethod
    def layers(self) -> Iterable[nn.Module]:
        """The layers of the encoder, a separate attention if there is one, then the layers of the decoder."""

    def project(self, hidden: Tensor) -> Tensor:
        """Decoder output (…, D) to logits (…, W), -inf for the ids of `NEVER_OUTPUT`."""
        return mask_never_output(F.linear(hidden, self.output_matrix, self.output_bias))

    def forward(self, src: Tensor, lengths: Tensor, tgt_in: Tensor) -> Tensor:
        """Logits (B, T, W) for src (B, S) with lengths (B,) and tgt_in (B, T)."""
        return self.project(self.decode(tgt_in, self.encode(src, lengths)))

    def through(self, layer: nn.Module, *inputs: Any) -> Any:
        """Apply a layer, with activation checkpointing if set."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def count_parameters(self) -> dict[str, int]:
        """The number of parameters of each part. A shared matrix counts once, under its first name."""
        counts = dict.fromkeys(self.parts, 0)
        for name, parameter in self.named_parameters():
            (part,) = (part for part, modules in self.parts.items() if name.split(".")[0] in modules)
            counts[part] += parameter.numel()
        return counts


def mask_never_output(logits: Tensor) -> Tensor:
    """Take the ids of `NEVER_OUTPUT` out of the softmax: set their logits (…, W) to -inf, in place."""
    for number in NEVER_OUTPUT:
        logits[..., number] = -torch.inf
    return logits
