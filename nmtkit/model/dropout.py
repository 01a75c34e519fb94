"""Dropout (§5.4). On a CPU, masks consist of random bits, since torch would draw one Bernoulli number at a time."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.model import native_operators

_LEVELS = 1 << 16  # a rate is rounded to 1/65536, which has no effect on training


class DropoutMask(NamedTuple):
    """A mask with 16 random bits for each element. An element is dropped if its bits, as a signed number, are below a
    threshold, which the rate determines."""

    bits: Tensor  # int16, in the shape of the elements
    rate: float

    @classmethod
    def draw(cls, x: Tensor, rate: float) -> "DropoutMask":
        """Draw a mask for x (…) on a CPU. Each 64-bit number of torch's generator covers four elements."""
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        return cls(draws.view(torch.int16)[: x.numel()].view(x.shape), rate)

    @property
    def threshold(self) -> int:
        """The lowest 16-bit number whose element is kept."""
        return min(round(self.rate * _LEVELS), _LEVELS - 1) - _LEVELS // 2

    @property
    def scale(self) -> float:
        """The scale factor of kept elements, 1 / (1 - rate)."""
        return 1.0 / (1.0 - self.rate)

    def apply(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return x · mask, plus a residual if given, all in the same shape (…)."""
        if not native_operators.serves(x):
            # the mask has the dtype of x: on a CPU, torch multiplies by booleans many times slower than by numbers
            keep = torch.ge(self.bits, self.threshold, out=torch.empty_like(x))
            dropped = (x * keep).mul_(self.scale)
            return dropped if residual is None else dropped.add_(residual)
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        y = torch.empty_like(x)
        native_operators.run("dropout", x, x, residual, self.bits, self.threshold, self.scale, x.numel(), y)
        return y


class _BitDropout(torch.autograd.Function):
    """Computes residual + x · mask, or x · mask alone."""

    @staticmethod
    def forward(context: Any, x: Tensor, rate: float, residual: Tensor | None) -> Tensor:
        mask = DropoutMask.draw(x, rate)
        context.save_for_backward(mask.bits)
        context.rate = rate
        return mask.apply(x, residual)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        (bits,) = context.saved_tensors
        mask = DropoutMask(bits, context.rate)
        return mask.apply(gradient), None, gradient if context.needs_input_grad[2] else None


def dropout(x: Tensor, rate: float, residual: Tensor | None = None) -> Tensor:
    """Set each element of x (…) to zero with probability `rate`, and scale the others by 1 / (1 - rate).

    With a residual (…), returns residual + Dropout(x), which a CPU computes in one pass.
    """
    if residual is not None and (rate == 0.0 or not native_operators.serves(x, residual)):
        return residual + dropout(x, rate)
    if rate == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    dropped: Tensor = _BitDropout.apply(x, rate, residual)  # type: ignore[no-untyped-call]
    return dropped


class Dropout(nn.Module):
    """Applies `dropout` in training mode only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return Dropout(x), or residual + Dropout(x), in the shape of x (…)."""
        return dropout(x, self.rate if self.training else 0.0, residual)
