"""What a model costs in floating-point operations, and how fast devices are: model FLOP utilization and Table 2.

Two counts of a training are in use, and they differ. The model's own FLOPs are those that its formulas need for the
real tokens: nothing for padding, nothing for what is computed twice to save memory. Table 2 of the paper counts what
the devices could have done meanwhile: time × devices × the sustained rate of a device.
"""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.model.config import TransformerConfig


def forward_flops(
    config: TransformerConfig, target_size: int, source: NDArray[np.integer], target: NDArray[np.integer]
) -> int:
    """Floating-point operations of a forward pass over sentence pairs of these lengths in tokens, ends counted.

    Counted are the matrix products, a multiplication and an addition as two. Self-attention counts all pairs of
    positions, or those within --attention-window; the half that the causal mask hides is counted, as is usual.
    """
    D, F = config.d_model, config.d_ff
    keys, values = config.heads * config.key_size, config.heads * config.value_size
    source, target = source.astype(np.int64), target.astype(np.int64)
    S, T = int(source.sum()), int(target.sum())
    window = config.attention_window
    source_reach = source if window is None else np.minimum(source, 2 * window + 1)
    target_reach = target if window is None else np.minimum(target, window + 1)

    projections = D * (2 * keys + values) + values * D  # W_Q, W_K, W_V and W_O, a token
    encoder = S * (projections + 2 * D * F) + (keys + values) * int((source * source_reach).sum())
    decoder = T * (projections + 2 * D * F) + (keys + values) * int((target * target_reach).sum())
    decoder += T * (D * keys + values * D) + S * D * (keys + values)  # attention to the source
    decoder += (keys + values) * int((source * target).sum())
    return 2 * (config.encoder_layers * encoder + config.decoder_layers * decoder + T * D * target_size)


def training_flops(
    config: TransformerConfig, target_size: int, source: NDArray[np.integer], target: NDArray[np.integer]
) -> int:
    """The same with the backward pass, where each product has two more: one for the gradient of each factor."""
    return 3 * forward_flops(config, target_size, source, target)


class Rates(NamedTuple):
    """What a device can do, in 10^12 floating-point operations a second, dense."""

    half: float | None  # bf16 or fp16 products with sums in fp32; None where they are not faster
    single: float  # fp32, or for the GPUs that the paper names, what it takes to be sustained


# By words of torch's name for the device, the more particular first. Figures of the makers' data sheets, and for
# K80, K40, M40 and P100 those of the paper (§6.1).
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
    """The rates of a device by torch's name for it, as 'NVIDIA H100 80GB HBM3'; None where they are not known here."""
    words = set(re.split(r"[\s-]+", device))
    return next((rates for names, rates in _RATES.items() if words.issuperset(names)), None)


def peak_flops(device: str, half: bool) -> float | None:
    """Floating-point operations a second that a device is rated at, with products in 16 bits or in fp32."""
    rates = rates_of(device)
    if rates is None:
        return None
    return ((rates.half if half else None) or rates.single) * 1e12


def table2_flops(seconds: float, devices: int, sustained: float) -> float:
    """A training's cost as Table 2 has it: time × devices × the sustained rate of one, in fp32 operations a second.

    The base model's 12 hours on 8 P100 of 9.5e12 are 3.3e18, the big model's 3.5 days 2.3e19.
    """
    return seconds * devices * sustained
