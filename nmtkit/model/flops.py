"""Floating-point operations of a training, and the rates of devices: model FLOP utilization and Table 2.

Two counts are in use, and they differ. A model's own FLOPs follow from its formulas and the real tokens: padding and
recomputation (activation checkpointing) do not count. Table 2 of the paper counts what the devices could have done in
the same time: time × devices × the sustained rate of a device.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.model.config import ModelConfig


def training_flops(
    config: ModelConfig, target_size: int, source: NDArray[np.integer], target: NDArray[np.integer]
) -> int:
    """Floating-point operations of forward and backward pass; arguments as of `ModelConfig.forward_flops`.

    The backward pass has two products for each one of the forward pass: one for the gradient of each factor.
    """
    return 3 * config.forward_flops(target_size, source, target)


class Rates(NamedTuple):
    """The rated speed of a device, in 10^12 dense floating-point operations a second."""

    half: float | None  # bf16 or fp16 products with sums in fp32; None where they are not faster
    single: float  # fp32; for the GPUs of the paper the sustained rate that it assumes


# By words of torch's name for the device, the most specific first. From the vendors' data sheets; for K80, K40, M40 and
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
    """The rates of a device by torch's name for it, such as 'NVIDIA H100 80GB HBM3'; None for an unknown device."""
    words = set(re.split(r"[\s-]+", device))
    return next((rates for names, rates in _RATES.items() if words.issuperset(names)), None)


def peak_flops(device: str, half: bool) -> float | None:
    """The rated floating-point operations a second of a device, in 16 bits (`half`) or fp32; None if unknown."""
    rates = rates_of(device)
    if rates is None:
        return None
    return ((rates.half if half else None) or rates.single) * 1e12


def table2_flops(seconds: float, devices: int, sustained: float) -> float:
    """The cost of a training as in Table 2: time × devices × the sustained rate of one (fp32 operations a second).

    The base model's 12 hours on 8 P100 of 9.5e12 are 3.3e18, the big model's 3.5 days 2.3e19.
    """
    return seconds * devices * sustained
