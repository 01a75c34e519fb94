"""Decides where nmtkit's compiled training operators are used, and calls them."""

from typing import Any

import torch
from torch import Tensor

from nmtkit.machine import native_build


def serves(*tensors: Tensor) -> bool:
    """Whether compiled operators support these tensors: all fp32 or all bf16, on a CPU, not under torch.compile."""
    if torch.compiler.is_compiling() or not native_build.available("fp32"):
        return False
    kind = tensors[0].dtype
    if kind not in (torch.float32, torch.bfloat16):
        return False
    return all(tensor.dtype == kind and tensor.device.type == "cpu" for tensor in tensors)


def run(name: str, x: Tensor, *arguments: Any) -> None:
    """Call a compiled operator in the precision of x. It gets the address of a tensor, and 0 for None."""
    values = (each.data_ptr() if isinstance(each, Tensor) else each or 0 for each in arguments)
    getattr(native_build.native, name)(x.dtype == torch.bfloat16, *values, torch.get_num_threads())
