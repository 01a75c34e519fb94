"""The loss by its definition (§5.4), for ids of which PAD (0) and BOS (2) are never output."""

import torch
from torch import Tensor
from torch.nn import functional as F


def outputs(logits: Tensor) -> Tensor:
    """The logits (…, W - 2) of the ids that may be output: UNK (1), and EOS (3) and above."""
    return torch.cat((logits[..., 1:2], logits[..., 3:]), dim=-1)


def smoothed_loss(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """The sum over the rows of logits (N, W) and target (N,), which must be ids that may be output."""
    assert ((target == 1) | (target >= 3)).all()
    return F.cross_entropy(outputs(logits), (target - 2).clamp_min(0), label_smoothing=smoothing, reduction="sum")
