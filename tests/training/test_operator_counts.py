"""The operators of an update on a GPU, which the host has to launch one by one, and the bytes that they move."""

from collections import Counter
from typing import Any

import pytest
import torch
from fake_gpu import GPU, fake_gpu
from operator_counts import OperatorCounts

from nmtkit.data.batch import Batch
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.training.config import OptimizerConfig
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.optim import take_step
from nmtkit.training.optimizers import make_optimizer
from nmtkit.training.ranks import Ranks

SCALER = torch.amp.GradScaler("cuda", enabled=False)


def make_gradient(layers: int, precision: torch.dtype, **options: Any) -> UpdateGradient:
    """The gradient of a small model on the fake GPU."""
    config = TransformerConfig(encoder_layers=layers, decoder_layers=layers, heads=2, **options)
    model = make_model(config, 50, 50).to(GPU)
    return UpdateGradient(MicroBatchLoss(model, 0.1), Ranks(GPU), precision, SCALER, seed=1, max_tokens=1000)


def count_operators(layers: int, micro_batches: int, precision: torch.dtype) -> Counter[str]:
    """Count the operators of the second update of a tiny model on the fake GPU."""
    gradient = make_gradient(layers, precision, d_model=16, d_ff=24)
    model = gradient.loss.model
    optimizer = make_optimizer(model, OptimizerConfig())
    src, tgt = torch.randint(4, 50, (3, 12)), torch.randint(4, 50, (3, 10))
    share = [(number, Batch.unpadded(src, tgt, tgt)) for number in range(micro_batches)]
    for update in (1, 2):
        with OperatorCounts() as counted:
            gradient.compute(update, share, 30 * micro_batches, votes=())
            take_step(model, optimizer, SCALER, 1e-3, clip_norm=1.0)
    counts: Counter[str] = counted.counts
    return counts


@pytest.mark.parametrize(
    ("precision", "update", "layer", "micro_batch"),
    [(torch.float32, 206, 111, 218), (torch.bfloat16, 279, 175, 292)],  # a few more than with torch 2.13
)
def test_an_update_a_pair_of_layers_and_a_micro_batch_have_at_most_so_many_operators(
    precision: torch.dtype, update: int, layer: int, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_gpu(monkeypatch, bf16=True):
        one = count_operators(1, 1, precision)
        assert one.total() <= update, one
        assert (more := count_operators(2, 1, precision) - one).total() <= layer, more
        assert (more := count_operators(1, 2, precision) - one).total() <= micro_batch, more
