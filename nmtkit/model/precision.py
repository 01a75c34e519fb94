"""The torch device of `--device` and the torch dtype of `--precision`."""

import torch

from nmtkit.errors import UserError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NATIVE_BF16_ON_CPU = ("avx512_bf16", "amx_bf16", "sve_bf16")  # x86-64, x86-64, ARM


def resolve_device(name: str) -> torch.device:
    """The device with that name; `auto` is a GPU if there is one. Raises UserError if torch cannot use the device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        if reason.startswith("Expected one of"):
            reason = "expected auto, cpu, cuda, or a numbered GPU such as cuda:1"
        raise UserError(f"--device {name}: not usable here ({reason})") from error
    return device


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """The dtype with that name; `auto` is bf16 if `device` multiplies it natively, otherwise fp32."""
    if name == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else torch.float32
    return _DTYPES[name]


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # torch < 2.12 cannot tell
        return any(torch.cpu.get_capabilities().get(name) for name in _NATIVE_BF16_ON_CPU)
    return False
