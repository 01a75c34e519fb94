"""The plain Transformer with steps of constant shapes, which CUDA graphs can replay.

Neither class is in use: the table of `nmtkit.inference.backends` has `TorchTransformer`, and one of these can take its
place there. `benchmarks/gpu_report.py` measures all three.
"""

from typing import Any

from torch import Tensor

from nmtkit.inference.protocol import columns_of
from nmtkit.inference.static_cache import BUCKET, StaticCache
from nmtkit.inference.step_graphs import StepGraphs
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.model.transformer import Memory


class StaticTransformer(TorchTransformer):
    """As `TorchTransformer`, with a `StaticCache` in searches with fixed rows. A model with a window of attention
    keeps the `KeyValueCache`, which gives a step only the positions in the window."""

    def start_fixed(self, memory: Memory, sentences: int, width: int) -> Any:
        """As `InferenceModel.start_fixed`."""
        if self.config.attention_window is not None:
            return super().start_fixed(memory, sentences, width)
        fresh = self.start(memory)
        longest = None if self.longest_sequence is None else self.longest_sequence + 1
        return StaticCache(fresh.layers, fresh.memory_bias, fresh.positions, longest, width)

    def state_bytes(self, tokens: int) -> int:
        """As `InferenceModel.state_bytes`, of whole buckets."""
        return super().state_bytes(-(-tokens // BUCKET) * BUCKET)


class GraphTransformer(StaticTransformer):
    """As `StaticTransformer`, with steps that CUDA graphs replay. It is for GPUs of NVIDIA only."""

    def start_fixed(self, memory: Memory, sentences: int, width: int) -> Any:
        """As `InferenceModel.start_fixed`."""
        state = super().start_fixed(memory, sentences, width)
        return StepGraphs(state) if isinstance(state, StaticCache) else state

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """As `InferenceModel.step`."""
        step = super().step
        return state.run(step, tokens) if isinstance(state, StepGraphs) else step(tokens, state)

    def best_step(self, tokens: Tensor, state: Any, count: int, excluded: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """As `InferenceModel.best_step`."""
        step = super().best_step
        if not isinstance(state, StepGraphs):
            return step(tokens, state, count, excluded)
        return state.run(step, tokens, count, excluded, read=columns_of(excluded, tokens.device))
