"""torch.compile for a model's layers, one at a time: names of parameters stay, and so does all around the layers."""

import torch
from torch import nn

from nmtkit.errors import UserError
from nmtkit.model.transformer import Transformer

_VARIANTS = 64  # of a layer: training or not, few positions or many, a single sentence or several, …


def compile_layers(model: Transformer, device: torch.device) -> None:
    """Have each layer compiled when it is first used, for sentences of any number and length.

    Layers alike share what is compiled. UserError where torch cannot compile on this machine.
    """
    _try(device)
    torch._dynamo.config.recompile_limit = _VARIANTS
    torch.fx.experimental._config.use_duck_shape = False  # or torch 2.9 takes sizes equal once for equal ever after
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=True)


def _try(device: torch.device) -> None:
    """Compile something small, forward and backward, as all that can be missing is missed there already."""
    small = nn.Linear(2, 2).to(device)
    try:
        loss = torch.compile(lambda x: torch.relu(small(x)).sum())(torch.ones(2, 2, device=device))
        torch.autograd.backward(loss)
    except Exception as error:
        reason = next(line for line in str(error).splitlines() if line.strip())
        raise UserError(
            f"--compile: torch cannot compile on this machine ({reason.strip()}): leave it out, or install what torch "
            f"needs for it, {'Triton' if device.type == 'cuda' else 'a C++ compiler and the headers of Python'}"
        ) from error
