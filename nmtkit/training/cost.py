"""The floating-point operations of a run, and its model FLOP utilization."""

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.data.packing import Share
from nmtkit.model.config import ModelConfig
from nmtkit.model.flops import peak_flops, rates_of, table2_flops, training_flops
from nmtkit.training.ranks import Ranks


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
            estimate = table2_flops(60 * minutes, self.ranks.size, rates.single * 1e12)
            as_in_paper = f"; {estimate:.2g} as in the paper's Table 2 (time × devices × {rates.single:g} TFLOPS)"
        return f"{flops:.2g} floating-point operations by the model's own count{as_in_paper}"
