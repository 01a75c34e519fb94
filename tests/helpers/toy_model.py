"""An architecture as small as possible, which shows what a new one has to provide."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from nmtkit.config import option
from nmtkit.model.config import LengthLimit, ModelConfig
from nmtkit.model.translation_model import TranslationModel


@dataclass(frozen=True)
class ToyConfig(ModelConfig):
    """A bag of source words, added to each target word; `depth` linear layers on top."""

    arch: ClassVar[str] = "toy"
    dropout_options: ClassVar[frozenset[str]] = frozenset()
    free_options: ClassVar[frozenset[str]] = frozenset()

    d_model: int = option(8, min=1, help="Width.")
    depth: int = option(2, min=1, help="Linear layers.")
    length: int = option(1000, min=1, help="Longest sequence.")

    @property
    def length_limit(self) -> LengthLimit | None:
        return LengthLimit(self.length, "--toy-length", "use a real model")

    def forward_flops(self, target_size: int, source: "np.ndarray[Any, Any]", target: "np.ndarray[Any, Any]") -> int:
        return 2 * int(target.sum()) * self.d_model * (self.depth * self.d_model + target_size)


class Toy(TranslationModel):
    """The model of a `ToyConfig`."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "embeddings": ("source_embedding", "target_embedding"),
        "decoder": ("decoder",),
        "output": ("projection",),
    }

    def __init__(self, config: ToyConfig, source_size: int, target_size: int) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(source_size, config.d_model)
        self.target_embedding = nn.Embedding(target_size, config.d_model)
        self.projection = nn.Embedding(target_size, config.d_model)
        self.decoder = nn.ModuleList(nn.Linear(config.d_model, config.d_model) for _ in range(config.depth))

    def encode(self, src: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(src.size(1), device=src.device) < lengths.unsqueeze(1)
        total: Tensor = (self.source_embedding(src) * real.unsqueeze(2)).sum(1)
        return total / lengths.unsqueeze(1)

    def decode(self, tgt_in: Tensor, memory: Tensor) -> Tensor:
        x: Tensor = self.target_embedding(tgt_in) + memory.unsqueeze(1)
        for layer in self.decoder:
            x = torch.tanh(layer(x))
        return x

    @property
    def output_matrix(self) -> Tensor:
        return self.projection.weight

    def layers(self) -> Iterable[nn.Module]:
        return self.decoder
