"""Layer norm, and LayerNorm(x + Dropout(y)) (§3.1, §5.4), fused on a CPU into one pass forward and one backward.

Training in bf16 keeps the activations between sub-layers in bf16: embeddings with positions, dropout, residual sums and
layer norms. Autocast alone would keep them in fp32, with a conversion before each matrix product and after its
gradient, and twice the memory traffic. Training in fp16 keeps them in fp32, since residual sums can overflow in fp16.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.machine.precision import product_dtype
from nmtkit.model import native_operators
from nmtkit.model.config import TransformerConfig
from nmtkit.model.dropout import Dropout, DropoutMask


def as_activations(x: Tensor) -> Tensor:
    """Convert x (…, D), the input of a stack of layers, to bf16 if activations are bf16; else return it unchanged."""
    return x.bfloat16() if product_dtype(x) == torch.bfloat16 else x


class LayerNorm(nn.LayerNorm):
    """Layer norm in the precision of its input, with mean and variance in fp32, regardless of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (…, D) to (…, D). Gradients of gain and bias have the precision of the parameters."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        gain = self.weight.to(x.dtype)  # required by GPU kernels
        bias = None if self.bias is None else self.bias.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):  # autocast would return fp32
            return F.layer_norm(x, self.normalized_shape, gain, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """x / √(mean(x²) + ε) · gain (Zhang and Sennrich 2019), in the precision of its input, as in `LayerNorm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (…, D). The gradient of the gain has the precision of the parameter."""
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def make_norm(config: TransformerConfig) -> nn.Module:
    """Create the norm that `norm_type` selects, for activations (…, D)."""
    if config.norm_type == "rms":
        return RMSNorm(config.d_model, config.norm_epsilon)
    return LayerNorm(config.d_model, config.norm_epsilon, bias=config.bias)


def add_and_norm(x: Tensor, y: Tensor, dropout: Dropout, norm: nn.Module) -> Tensor:
    """Compute LayerNorm(x + Dropout(y)) for x and y (…, D), or a different norm of the sum."""
    is_compiled = isinstance(norm, nn.LayerNorm) and norm.bias is not None and norm.weight.dtype == torch.float32
    if not is_compiled or not native_operators.serves(x, y):
        normed: Tensor = norm(dropout(y, x))
        return normed
    rate = dropout.rate if dropout.training else 0.0
    result: Tensor = _AddAndNorm.apply(x, y, norm.weight, norm.bias, norm.eps, rate)  # type: ignore[no-untyped-call]
    return result


class _AddAndNorm(torch.autograd.Function):
    """Saves x + Dropout(y), the mask's bits, and each row's mean and standard deviation for the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor, y: Tensor, gain: Tensor, bias: Tensor, epsilon: float, rate: float) -> Tensor:
        mask = DropoutMask.draw(y, rate) if rate else None
        context.rate = rate
        x, y = x.contiguous(), y.contiguous()
        D = x.size(-1)
        rows = x.numel() // D
        total, result, moments = torch.empty_like(x), torch.empty_like(x), gain.new_empty(rows, 2)
        inputs = x, y, *_as_native(mask), gain, bias, epsilon, rows, D
        native_operators.run("residual_norm", x, *inputs, total, moments, result)
        context.save_for_backward(total, moments, gain, mask.bits if mask else None)
        return result

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        total, moments, gain, bits = context.saved_tensors
        mask = None if bits is None else DropoutMask(bits, context.rate)
        gradient = gradients[0].contiguous()
        grad_x, grad_gain, grad_bias = torch.empty_like(total), torch.empty_like(gain), torch.empty_like(gain)
        grad_y = torch.empty_like(total) if mask else grad_x
        inputs = gradient, *_as_native(mask), gain, total, moments, moments.size(0), total.size(-1)
        native_operators.run("residual_norm_backward", total, *inputs, grad_x, grad_y, grad_gain, grad_bias)
        return grad_x, grad_y, grad_gain, grad_bias, None, None


def _as_native(mask: DropoutMask | None) -> tuple[Tensor | None, int, float]:
    return (mask.bits, mask.threshold, mask.scale) if mask else (None, 0, 1.0)
