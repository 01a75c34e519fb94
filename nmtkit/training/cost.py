"""The floating-point operations (FLOPs) of a run, its model FLOP utilization, and the rates of devices.

Model FLOP utilization counts the operations of the model on real tokens: padding and recomputation (activation
checkpointing) do not count. Table 2 of the paper counts time × devices × the sustained rate of a device instead.
"""

import re
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.data.packing import Share
from nmtkit.model.config import ModelConfig
from nmtkit.training.ranks import Ranks


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


def training_flops(
    config: ModelConfig, target_size: int, source: NDArray[np.integer], target: NDArray[np.integer]
) -> int:
    """Count the FLOPs of forward and backward pass over sentence pairs of these lengths (n,), in tokens with EOS. The
    backward pass has two products for each of the forward pass: the gradients of both factors."""
    return 3 * config.forward_flops(target_size, source, target)


class Cost:
    """Counts the floating-point operations of a run's model, and compares them with the rated speed of its devices."""

    def __init__(
        self, config: ModelConfig, target_size: int, ranks: Ranks, precision: torch.dtype, passes: int = 1
    ) -> None:
        """`passes` is how often the model computes each sentence pair."""
        self.config, self.target_size, self.ranks, self.passes = config, target_size, ranks, passes
        self.device = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else ranks.device.type
        self.half = precision != torch.float32

    def flops(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> int:
        """Count FLOPs of all passes, forward and backward, over pairs of these lengths (n,), without padding."""
        return self.passes * training_flops(self.config, self.target_size, source, target)

    def flops_of_sampled(self, share: Share) -> int:
        """Count FLOPs of an update with sampled subwords, whose lengths are known only from batches. Collective."""
        batches = [part for _, parts in share for part in parts]
        lengths = [[side.numpy() for side in (batch.source_lengths, batch.target_lengths)] for batch in batches]
        (flops,) = self.ranks.sum([sum(self.flops(*sides) for sides in lengths)])
        return int(flops)

    def utilization(self, flops: int, seconds: float) -> float | None:
        """Compute model FLOP utilization, the share of the rated speed; None if the device's rate is unknown."""
        peak = peak_flops(self.device, self.half)
        return None if peak is None else flops / (seconds * peak * self.ranks.size)

    def describe(self, flops: int, minutes: float) -> str:
        """Describe the cost of the run in one line. For a known device, add the method of the paper's Table 2."""
        rates = rates_of(self.device)
        as_in_paper = ""
        if rates is not None:
            estimate = 60 * minutes * self.ranks.size * rates.single * 1e12
            as_in_paper = f"; {estimate:.2g} as in the paper's Table 2 (time × devices × {rates.single:g} TFLOPS)"
        return f"{flops:.2g} floating-point operations by the model's own count{as_in_paper}"
