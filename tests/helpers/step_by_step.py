"""An inference model with the minimum that the protocol requires."""

from typing import Any

from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.protocol import InferenceModel


class StepByStep(InferenceModel):
    """Another model without its `best_step` and `score`: those are the defaults of the protocol."""

    def __init__(self, model: InferenceModel) -> None:
        self.model, self.device = model, model.device

    def encode(self, src: Ints, lengths: Ints) -> Any:
        return self.model.encode(src, lengths)

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Ints, state: Any) -> Floats:
        return self.model.step(tokens, state)

    def state_bytes(self, tokens: int) -> int:
        return self.model.state_bytes(tokens)
