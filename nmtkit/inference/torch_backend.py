"""Adapts torch models to the protocol of the search. Only this module converts between arrays and tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmtkit.inference.arrays import Floats, Ints
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.protocol import AttentionWeights, InferenceModel
from nmtkit.inference.torch_inference import FixedEnsemble, FixedModel, TorchInference, TorchState


class TorchBackendState:
    """The state of a `TorchBackend`."""

    def __init__(self, state: TorchState, backend: "TorchBackend") -> None:
        self.state, self._backend = state, backend

    @torch.inference_mode()
    def reorder(self, origins: Ints) -> None:
        self.state.reorder(self._backend.tensor(origins))


class TorchBackend(InferenceModel):
    """A `TorchInference` as an inference model."""

    def __init__(self, model: TorchInference) -> None:
        self.model, self.device, self.precision = model, str(model.device), model.precision
        self.vocabulary_size, self.longest_sequence = model.vocabulary_size, model.longest_sequence
        self.attention_layers = model.attention_layers

    @torch.inference_mode()
    def encode(self, src: Ints, lengths: Ints) -> Any:
        return self.model.encode(self.tensor(src), self.tensor(lengths))

    @torch.inference_mode()
    def start(self, memory: Any) -> TorchBackendState:
        return TorchBackendState(self.model.start(memory), self)

    @torch.inference_mode()
    def step(self, tokens: Ints, state: TorchBackendState) -> Floats:
        return _array(self.model.step(self.tensor(tokens), state.state))

    @torch.inference_mode()
    def best_step(
        self, tokens: Ints, state: TorchBackendState, count: int, excluded: tuple[int, ...]
    ) -> tuple[Floats, Ints]:
        """Return the highest log-probabilities and their tokens, both (R, count). Only these leave a GPU."""
        if self.model.device.type != "cuda":
            return super().best_step(tokens, state, count, excluded)
        log_probs, columns = self.model.best_step(self.tensor(tokens), state.state, count, excluded)
        return _array(log_probs), columns.cpu().numpy()

    def state_bytes(self, tokens: int) -> int:
        return self.model.state_bytes(tokens)

    @torch.inference_mode()
    def score(self, src: Ints, lengths: Ints, tgt: Ints, tgt_lengths: Ints) -> Floats:
        return _array(self.model.score(*map(self.tensor, (src, lengths, tgt, tgt_lengths))))

    @torch.inference_mode()
    def attention(self, src: Ints, lengths: Ints, tgt_in: Ints) -> AttentionWeights:
        self.alignment_layer(None)
        weights = self.model.attention(*map(self.tensor, (src, lengths, tgt_in)))
        return AttentionWeights(**{kind: [_array(layer) for layer in layers] for kind, layers in vars(weights).items()})

    @torch.inference_mode()
    def alignment(self, src: Ints, lengths: Ints, tgt_in: Ints, layer: int | None) -> Floats:
        number = self.alignment_layer(layer)
        sources, targets = (self.tensor(src), self.tensor(lengths)), self.tensor(tgt_in)
        return _array(self.model.alignment(*sources, targets, number))

    def tensor(self, array: Ints) -> Tensor:
        """Copy an array to the device of the model."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)


def fixed_model(model: InferenceModel) -> FixedModel:
    """Return the model in tensors behind a torch backend, or behind an ensemble of torch backends."""
    if isinstance(model, Ensemble):
        return FixedEnsemble([fixed_model(each) for each in model.models])
    assert isinstance(model, TorchBackend)
    return model.model


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.float().cpu().numpy()
    return array
