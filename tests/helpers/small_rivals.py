"""Small recurrent and convolutional models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference_loss import outputs
from small_transformers import sentences
from torch import Tensor, nn
from torch.testing import assert_close

from nmtkit.model.architectures import make_model
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.translation_model import TranslationModel

W = 17
SMALL: dict[str, dict[str, Any]] = {
    "gnmt": {"encoder_layers": 3, "decoder_layers": 4, "d_model": 6},
    "lstm_tied": {"encoder_layers": 2, "decoder_layers": 2, "d_model": 7, "separate_output": False},
    "convs2s": {
        "encoder_convolutions": "1x8,2x10,1x6:4",
        "decoder_convolutions": "2x8,1x9:1,1x7:2",
        "d_model": 10,
        "d_bottleneck": 5,
        "max_positions": 40,
    },
    "conv_tied": {
        "encoder_convolutions": "1x8:5",
        "decoder_convolutions": "1x8",
        "d_model": 6,
        "d_bottleneck": 6,
        "separate_output": False,
    },
}
rivals = pytest.mark.parametrize("name", SMALL)


def config(name: str, **changes: Any) -> RecurrentConfig | ConvolutionalConfig:
    """The options of a small model; dropout is 0 by default."""
    kind = ConvolutionalConfig if name.startswith("conv") else RecurrentConfig
    return kind(**({"dropout": 0.0} | SMALL[name] | changes))


def make(name: str, source_size: int = W, target_size: int = W, scale: float = 1.0, **changes: Any) -> TranslationModel:
    """A small model in float64 with random parameters everywhere, larger by `scale` than initialized ones."""
    torch.manual_seed(1)
    model = make_model(config(name, **changes), source_size, target_size).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # initialized to constants, in part
                nn.init.normal_(parameter, std=0.5)
            parameter.mul_(scale)
    return model


def assert_equal_to_reference(model: TranslationModel, reference: Callable[..., Tensor]) -> None:
    """Assert that the logits of a padded batch are those of `reference(weights, config, src, tgt_in)`, row by row."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    src, tgt_in = sentences(7, 2, 5), sentences(6, 6, 6, seed=1)
    lengths = torch.tensor([7, 2, 5])
    logits = model(src, lengths, tgt_in)
    for row in range(3):
        expected = reference(weights, model.config, src[row, : lengths[row]].tolist(), tgt_in[row].tolist())
        assert_close(outputs(logits[row]), outputs(expected))
