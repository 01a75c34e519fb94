"""The interface between training and a model: what an architecture has to implement.

Letters: B batch, S source length, T target length, D d_model, W target vocabulary. Batch first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from nmtkit.model.config import ModelConfig


class TranslationModel(nn.Module, ABC):
    """An encoder-decoder model as training sees it. `__init__(config, source_size, target_size)` draws its weights.

    Source rows end with padding, whose ids have no effect. Parameter names and shapes are part of the checkpoint.
    """

    config: ModelConfig
    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    """The top-level modules of each part of the model, for the parameter summary. The part "output" has no parameters
    where the output matrix is shared with an embedding."""
    activation_checkpointing = False  # recompute the activations inside `layers` in the backward pass

    @abstractmethod
    def encode(self, src: Tensor, lengths: Tensor) -> Any:
        """The encoder's output, as `decode` takes it, for src (B, S): row b has lengths[b] ≥ 1 tokens, then padding."""

    @abstractmethod
    def decode(self, tgt_in: Tensor, memory: Any) -> Tensor:
        """The decoder's output (B, T, D) before the projection, for tgt_in (B, T), the target shifted right by one."""

    @property
    @abstractmethod
    def output_matrix(self) -> Tensor:
        """The projection to the target vocabulary (W, D). It has no bias: the loss fuses product and softmax."""

    @abstractmethod
    def layers(self) -> Iterable[nn.Module]:
        """The layers, each of which `--compile` compiles separately."""

    def count_parameters(self) -> dict[str, int]:
        """Parameters of each part; a shared matrix counts once, at its first name."""
        counts = dict.fromkeys(self.parts, 0)
        for name, parameter in self.named_parameters():
            (part,) = (part for part, modules in self.parts.items() if name.split(".")[0] in modules)
            counts[part] += parameter.numel()
        return counts
