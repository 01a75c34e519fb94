"""Floating-point operations (FLOPs) of a training run, and the rates of devices.

Model FLOP utilization counts the operations of the model on real tokens: padding and recomputation (activation
checkpointing) do not count. Table 2 of the paper counts time × devices × the sustained rate of a device instead.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.model.config import ModelConfig


def training_flops(
    config: ModelConfig, target_size: int, source: NDArray[np.integer], target: NDArray[np.integer]
) -> int:
    """Count the FLOPs of forward and backward pass over sentence pairs of these lengths (n,), in tokens with EOS. The
    backward pass has two products for each of the forward pass: the gradients of both factors."""
    return 3 * config.forward_flops(target_size, source, target)


class Rates(NamedTuple):
    """The peak rates of a device, in 10^12 dense floating-point operations per second."""

    half: float | None  # bf16 or fp16 products with sums in fp32; None if not faster
    single: float  # fp32; for GPUs of the paper, its assumed sustained rate


# By words in torch's name of the device, the most specific first. From the vendors' data sheets; for K80, K40, M40 and
# P100 from the paper (§6.1).
_RATES = {
    ("H100", "PCIe"): Rates(756, 51),
    ("H100", "NVL"): Rates(835, 60),
    ("H100",): Rates(989, 67),
    ("H200",): Rates(989, 67),
    ("B200",): Rates(2250, 75),
    ("A100",): Rates(312, 19.5),
    ("A10",): Rates(125, 31.2),
    ("A10G",): Rates(70, 31.5),
    ("L4",): Rates(121, 30.3),
    ("L40S",): Rates(362, 91.6),
    ("V100",): Rates(125, 15.7),
    ("T4",): Rates(65, 8.1),
    ("P100",): Rates(None, 9.5),
    ("M40",): Rates(None, 6.0),
    ("K40",): Rates(None, 3.7),
    ("K80",): Rates(None, 2.8),
}


def rates_of(device: str) -> Rates | None:
    """Find the rates of a device by torch's name, such as 'NVIDIA H100 80GB HBM3'; None for an unknown device."""
    words = set(re.split(r"[\s-]+", device))
    return next((rates for names, rates in _RATES.items() if words.issuperset(names)), None)


def peak_flops(device: str, half: bool) -> float | None:
    """Find the peak rate of a device in FLOPs per second, for 16 bits (`half`) or fp32; None for an unknown device."""
    rates = rates_of(device)
    if rates is None:
        return None
    return ((rates.half if half else None) or rates.single) * 1e12


def table2_flops(seconds: float, devices: float, sustained: float) -> float:
    """Estimate the FLOPs of a training run as in Table 2: time × devices × `sustained` fp32 FLOPs per second. Base: 12
    hours on 8 P100 at 9.5e12 are 3.3e18 FLOPs. Big: 3.5 days are 2.3e19."""
    return seconds * devices * sustained
