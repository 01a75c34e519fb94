"""Checkpoints in int8: the matrices of products as the compiled search quantizes them."""

from dataclasses import replace

import numpy as np

from nmtkit.checkpoint import Checkpoint
from nmtkit.inference.loading import check_int8
from nmtkit.machine import native_build
from nmtkit.model.parameters import is_factor


def to_int8(checkpoint: Checkpoint, weights: str = "auto") -> Checkpoint:
    """Quantize a checkpoint for translation on CPUs. The result translates like `--precision int8`.

    `weights` is as in `WeightsConfig`. Raises UserError if the compiled search cannot run the model in int8.
    """
    check_int8(checkpoint.model_config)
    checkpoint = checkpoint.without_training(weights)
    quantized, scales = dict(checkpoint.weights), {}
    for name, weight in checkpoint.weights.items():
        if is_factor(name, weight.shape):
            integers, scales[name] = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
            native_build.native.quantize(weight, integers, scales[name])
            quantized[name] = integers  # type: ignore[assignment]
    return replace(checkpoint, weights=quantized, scales=scales)
