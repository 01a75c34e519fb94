"""Resolves `--device` to a torch device, and `--precision` to a number format.

A number format has a name for options and messages, and a torch dtype for computations.
"""

import os
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from nmtkit.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # torch has no products in int8
_NATIVE_BF16_ON_CPU = ("avx512_bf16", "amx_bf16", "sve_bf16")  # x86-64, x86-64, ARM


def resolve_device(name: str) -> torch.device:
    """Return the device with this name, after `prepare_gpu` for a GPU. `auto`: a GPU, if any. Raises UserError."""
    if name == "auto" and torch.cuda.is_available():
        prepare_gpu()
        return torch.device("cuda")  # without a tensor on it: each process of a run has its own GPU
    if name == "auto":
        return torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":
            prepare_gpu()
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        if reason.startswith("Expected one of"):
            reason = "expected auto, cpu, cuda, or a numbered GPU such as cuda:1"
        raise UserError(f"--device {name} cannot be used here ({reason})") from error
    return device


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype with this name; `auto` is bf16 if `device` supports it natively, otherwise fp32."""
    if name == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else torch.float32
    return DTYPES[name]


def precision_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, as `--precision` spells it."""
    return next((name for name, own in DTYPES.items() if own == dtype), "fp64")


def has_slow_bf16(device: torch.device) -> bool:
    """Whether `device` is known to be a CPU without bf16 instructions, on which bf16 is far slower than fp32."""
    return device.type == "cpu" and _can_tell() and not _multiplies_bf16(device)


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[Any]:
    """Compute in `precision` within this context where torch considers it safe; weights stay in fp32."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products of x (…) with a matrix: autocast's dtype if active, otherwise the dtype of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def prepare_gpu() -> None:
    """Configure torch for translation models on GPUs, before the first tensor is on one.

    * No cuDNN attention, because it builds a graph for each new shape in about 45 ms, and shapes rarely repeat.
    * No TF32, so that fp32 means fp32. By default, cuDNN uses TF32 for convolutions and recurrent layers.
    * No bf16 sums of split products: the gradient of a weight is a sum over all tokens of an update.
    * Expandable memory segments, which fragment less when shapes vary. The user's setting takes precedence.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu" and _can_tell():
        return any(torch.cpu.get_capabilities().get(name) for name in _NATIVE_BF16_ON_CPU)
    return False


def _can_tell() -> bool:
    """Whether this torch can report the CPU's instructions, as 2.12 and later can."""
    return hasattr(torch.cpu, "get_capabilities")
