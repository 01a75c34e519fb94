"""Chooses the device and the number format of inference, without torch for a CPU."""

import ctypes
import sys
from pathlib import Path

from nmtkit.errors import UserError


def inference_device(name: str) -> str:
    """Return the device for a value of `--device`: "cpu" or torch's name of a GPU. `auto` is a GPU if there is one.
    Raises UserError if torch cannot use it."""
    if name == "cpu" or (name == "auto" and "torch" not in sys.modules and not _has_driver()):
        return "cpu"
    from nmtkit.machine.precision import resolve_device

    return str(resolve_device(name))


def is_on_gpu(device: str) -> bool:
    """Whether a device is one of torch's GPUs."""
    return device.startswith("cuda")


def is_cpu(device: str) -> bool:
    """Whether a device is the CPU."""
    return device.partition(":")[0] == "cpu"


def inference_precision(name: str, device: str) -> str:
    """Return the number format for a value of `--precision` on a device. `auto` is fp32 on a CPU, and bf16 on a GPU
    that supports it natively. Raises UserError for formats that the device does not support."""
    if name == "auto" and is_cpu(device):
        return "fp32"
    if name == "auto":
        import torch

        from nmtkit.machine.precision import precision_name, resolve_precision

        return precision_name(resolve_precision(name, torch.device(device)))
    if name == "fp16" and is_cpu(device):
        raise UserError("--precision fp16 is for GPUs: on a CPU use fp32, or int8, which is faster")
    if name == "int8" and not is_cpu(device):
        raise UserError(f"--precision int8 is for CPUs, not for {device}: use bf16 or fp16")
    return name


def _has_driver() -> bool:
    """Whether this machine has a GPU driver, of AMD or NVIDIA, so that torch may find a GPU."""
    if Path("/dev/kfd").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
