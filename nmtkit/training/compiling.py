"""torch.compile for a model's layers, one at a time, so that parameter names do not change."""

import torch
from torch import nn

from nmtkit.errors import UserError
from nmtkit.model.protocol import TranslationModel

_VARIANTS = 64  # of a layer: training or not, few or many positions, one sentence or several, …


def compile_layers(model: TranslationModel, device: torch.device) -> None:
    """Compile each layer at its first use, for any batch size and length. Equal layers share compiled code.

    UserError where torch cannot compile on this machine.
    """
    _try(device)
    torch._dynamo.config.recompile_limit = _VARIANTS
    torch.fx.experimental._config.use_duck_shape = (
        False  # else torch 2.9 assumes that sizes equal once are always equal
    )
    for layer in model.layers():
        layer.compile(dynamic=True)


def _try(device: torch.device) -> None:
    """Compile a small function, forward and backward: whatever is missing on this machine fails here."""
    small = nn.Linear(2, 2).to(device)
    try:
        loss = torch.compile(lambda x: torch.relu(small(x)).sum())(torch.ones(2, 2, device=device))
        torch.autograd.backward(loss)
    except Exception as error:
        reason = next(line for line in str(error).splitlines() if line.strip())
        raise UserError(
            f"--compile: torch cannot compile on this machine ({reason.strip()}): omit it, or install "
            f"{'Triton' if device.type == 'cuda' else 'a C++ compiler and the headers of Python'}"
        ) from error
