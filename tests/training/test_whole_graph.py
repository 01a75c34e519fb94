"""Encoder and decoder of a training, each compiled as a whole: one graph for micro-batches of all shapes."""

from typing import Any

import numpy as np
import pytest
import torch
from packed_attention import attend_within_sentences
from torch.testing import assert_close

from nmtkit.data.batch import make_batch
from nmtkit.data.packing import MicroBatchTensors, make_packed_batch
from nmtkit.model import transformer
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.training.gradient import MicroBatchLoss
from nmtkit.training.mixed_precision import autocast
from nmtkit.vocab import EOS

SIZES = (5, 30), (40, 9), (13, 21), (90, 12), (2, 80)  # sentences, and tokens of the longest


def micro_batch(packed: bool, sentences: int, longest: int) -> MicroBatchTensors:
    """A micro-batch of random sentences, some of them shorter than the longest."""
    random = np.random.default_rng(sentences)
    sides: list[Any] = []
    for _ in range(2):
        lengths = np.append(random.integers(1, longest, sentences - 1), longest).astype(np.int32)
        ids = random.integers(EOS + 1, 50, lengths.sum())
        ids[lengths.cumsum() - 1] = EOS
        sides += [ids, lengths]
    return (make_packed_batch if packed else make_batch)(*sides)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch, while it traces
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # the same
@pytest.mark.parametrize(
    ("precision", "packed"), [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
)
def test_encoder_and_decoder_are_one_graph_each_for_micro_batches_of_all_shapes(
    precision: torch.dtype, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(transformer, "as_activations", lambda x: x.to(precision))  # as on a GPU, like the next three
    monkeypatch.setattr("nmtkit.model.attention._fused_pays", lambda q, k: True)
    monkeypatch.setattr("nmtkit.model.attention.serves", lambda projections, mask: False)
    monkeypatch.setattr("nmtkit.training.loss.kernel_for", lambda *facts: attend_within_sentences)
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0)
    model = make_model(config, 50, 50)
    loss = MicroBatchLoss(model, smoothing=0.1).train()
    for positions in ("source_positions", "target_positions"):
        model.get_submodule(positions)(0, 100)  # tables grow with the longest sentence so far
    batches = [micro_batch(packed, *sizes) for sizes in SIZES]
    with autocast(torch.device("cpu"), precision):
        expected = [loss(batch) for batch in batches]
        for name in ("encode", "decode", "decode_packed"):
            compiled: Any = torch.compile(getattr(model, name), fullgraph=True, dynamic=True, backend=count)
            monkeypatch.setattr(model, name, compiled)
        for batch, sums in zip(batches, expected, strict=True):
            assert_close(loss(batch), sums)
    torch.compiler.reset()
    assert len(graphs) <= 2
