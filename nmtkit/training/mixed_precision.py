"""Mixed precision: products in 16 bits, weights in fp32."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[Any]:
    """Compute in `precision` where torch considers it safe; weights stay in fp32."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)
