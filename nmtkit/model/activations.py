"""The precision of a Transformer's activations between sub-layers.

Training in bf16 keeps them in bf16: embeddings with positions, dropout, residual sums and layer norms. Autocast alone
keeps them in fp32, with a conversion before each matrix product and after its gradient, and twice the memory traffic.
Training in fp16 keeps them in fp32, because residual sums can exceed the range of fp16.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.machine.precision import product_dtype


def as_activations(x: Tensor) -> Tensor:
    """Convert x, the input of a stack of layers, to bf16 if its activations are bf16. Otherwise return it unchanged."""
    return x.bfloat16() if product_dtype(x) == torch.bfloat16 else x


class LayerNorm(nn.LayerNorm):
    """Layer norm in the precision of its input, with mean and variance in fp32, whatever autocast would choose."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, D). Gradients of gain and bias have the precision of these."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        gain, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)  # as kernels for GPUs require
        with torch.autocast(x.device.type, enabled=False):  # which would return fp32
            return F.layer_norm(x, self.normalized_shape, gain, bias, self.eps)
