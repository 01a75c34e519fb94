"""Decides where nmtkit's compiled training operators are used."""

import torch

from nmtkit.machine import native_build
from nmtkit.machine.number_format import NumberFormat


def serves(*tensors: torch.Tensor) -> bool:
    """Whether compiled operators support these tensors: all fp32 or all bf16, on a CPU, not under torch.compile."""
    if torch.compiler.is_compiling() or not native_build.available(NumberFormat.FP32):
        return False
    kind = tensors[0].dtype
    if kind not in (torch.float32, torch.bfloat16):
        return False
    return all(tensor.dtype == kind and tensor.device.type == "cpu" for tensor in tensors)
