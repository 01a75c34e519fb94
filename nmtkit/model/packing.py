"""Models made for inference: linear layers whose weights are laid out once for a CPU's instructions, and parts that are
called without a detour. They cannot be trained."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmtkit.errors import UserError
from nmtkit.model import native
from nmtkit.model.dropout import Dropout
from nmtkit.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from nmtkit.model.native import NativeLinear, NativeTransformer
from nmtkit.model.precision import resolve_precision
from nmtkit.model.transformer import Transformer

_LEVELS = 63  # of an input to each side of 0: 7 bits, since two products of more overflow AVX2's 16-bit sums
_WEIGHT_LEVELS = 127
_TINY = torch.finfo(torch.float32).tiny


class Int8Linear(nn.Module):
    """x·Wᵀ + b with W and x rounded to integers, each row of either scaled by its own largest value.

    The sums are exact, and a row's result does not depend on the rows beside it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        scales = weight.abs().amax(1).clamp_min(_TINY) / _WEIGHT_LEVELS
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"(?s)torch\.quantize_per_tensor.* are deprecated")
            zeros = torch.zeros(len(scales), dtype=torch.long)
            quantized = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantized, None)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, N)."""
        scales = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scales, 1 / _LEVELS, _LEVELS + 1, self.packed
        )
        return y.mul_(scales) if self.bias is None else torch.addcmul(self.bias, y, scales)


class Fp16Linear(nn.Module):
    """x·Wᵀ + b with W rounded to fp16 and all else in fp32: half as much to read, which is what few rows wait for."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, N)."""
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return y


class TransposedLinear(nn.Module):
    """x·Wᵀ + b with Wᵀ in memory row by row, which BLAS reads twice as fast when x has only a few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        self.weight = weight.t().contiguous().t()

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, N)."""
        return F.linear(x, self.weight, self.bias)


class OneDnnLinear(nn.Module):
    """x·Wᵀ + b with W in oneDNN's own layout, which spares it the laying out at every call."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) to (…, N)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


_PACKED = (Int8Linear, Fp16Linear, TransposedLinear, OneDnnLinear, NativeLinear)
_ONLY_CALLED = (nn.Linear, *_PACKED, nn.LayerNorm, Dropout, FeedForward, Residual)


def inference_precision(name: str, device: torch.device) -> str:
    """The number format that `auto` means where nothing is trained; any other name is itself."""
    if name != "auto":
        return name
    if device.type == "cpu" and _has_fbgemm():
        return "int8"
    return "bf16" if resolve_precision(name, device) == torch.bfloat16 else "fp32"


def pack(model: Transformer, precision: str) -> Transformer:
    """Bring a model in fp32 on a CPU into a number format, with the layers that are the fastest there; returns it.

    In fp32 and int8 it searches in C++ where that fits (`native`). Else the layers of fp32 and bf16 are packed by
    oneDNN where the CPU has AVX-512, since torch's own products do not use it on every CPU. UserError for int8 where
    there are no 8-bit products.
    """
    if precision in ("fp32", "int8") and native.available() and native.supports(model.config):
        _replace(model.float(), partial(NativeLinear, eight_bits=precision == "int8"))
        model.native = _native(model)
        return model
    if precision == "int8" and not _has_fbgemm():
        raise UserError("--precision int8: this build of torch has no FBGEMM, which is made for x86-64: take fp32")
    if precision in ("int8", "fp16") and _has_fbgemm():
        torch.backends.quantized.engine = "fbgemm"
        _replace(model, Int8Linear if precision == "int8" else Fp16Linear)
        return model
    model.to(resolve_precision(precision, torch.device("cpu")))
    if torch._C._has_mkldnn and "AVX512" in torch.backends.cpu.get_cpu_capability():
        _replace(model, OneDnnLinear)
    elif precision == "fp32":
        _replace(model, TransposedLinear)
    return model


def call_directly(model: Transformer) -> Transformer:
    """Put in the place of each part that is called, and asked for nothing else, the function that it is; returns the
    model. To find such parts in their modules, and then to look for hooks, takes a tenth of a step of one sentence."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, _ONLY_CALLED):
                delattr(parent, name)
                vars(parent)[name] = part.forward
    return model


def _has_fbgemm() -> bool:
    """Whether this torch has FBGEMM, whose products of 8-bit integers and fp16 weights are made for x86-64."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def _native(model: Transformer) -> NativeTransformer:
    """What searches in the place of a model whose linear layers are `NativeLinear`."""
    matrices, norms = [], []
    for layer in cast(list[EncoderLayer | DecoderLayer], [*model.encoder, *model.decoder]):
        matrices += [layer.self_attention.qkv, layer.self_attention.out]
        norms.append(layer.around_self_attention.norm)
        if isinstance(layer, DecoderLayer):
            matrices += [layer.cross_attention.q, layer.cross_attention.kv, layer.cross_attention.out]
            norms.append(layer.around_cross_attention.norm)
        matrices += [layer.feed_forward.inner, layer.feed_forward.outer]
        norms.append(layer.around_feed_forward.norm)
    if model.config.norm == "pre":
        norms += cast(list[nn.LayerNorm], [model.encoder_norm, model.decoder_norm])
    return NativeTransformer(
        model.config,
        (model.source_embedding.weight, model.target_embedding.weight),
        (model.source_positions, model.target_positions),
        cast(list[NativeLinear], [*matrices, model.packed_output]),
        norms,
    )


@torch.no_grad()
def _replace(model: Transformer, layer: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, layer(child.weight.detach(), child.bias.detach()))
    model.packed_output = layer(model.output_matrix.detach(), None)
