"""Dropout (§5.4). On a CPU, masks are made of random bits: torch would draw one Bernoulli number at a time."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16  # a rate is rounded to 1/65536, which has no effect on training


class _BitDropout(torch.autograd.Function):
    """Dropout with a mask of 16 random bits for each element, four from each 64-bit draw of torch's generator.

    The mask has the dtype of x: on a CPU, torch multiplies by booleans many times slower than by numbers.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, rate: float) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        threshold = min(round(rate * _LEVELS), _LEVELS - 1) - _LEVELS // 2
        keep = torch.ge(bits, threshold, out=torch.empty_like(x))
        context.save_for_backward(keep)
        context.scale = 1.0 / (1.0 - rate)
        return (x * keep).mul_(context.scale)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (keep,) = context.saved_tensors
        return (gradients[0] * keep).mul_(context.scale), None


def dropout(x: Tensor, rate: float) -> Tensor:
    """Set each element of x to zero with probability `rate`, and scale the others by 1 / (1 - rate)."""
    if rate == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    dropped: Tensor = _BitDropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


class Dropout(nn.Module):
    """Applies `dropout` in training mode only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x
