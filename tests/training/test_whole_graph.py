"""The loss of a micro-batch as one graph, as compilation of the whole needs it."""

import pytest
import torch

from nmtkit.data.batch import Batch
from nmtkit.model import transformer
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.training.gradient import MicroBatchLoss
from nmtkit.training.mixed_precision import autocast


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # of torch, while it traces
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_loss_of_a_micro_batch_is_one_graph_for_any_shape(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "as_activations", lambda x: x.to(precision))  # as on a GPU
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0)
    model = make_model(config, 50, 50)
    loss = MicroBatchLoss(model, smoothing=0.1).train()
    for positions in ("source_positions", "target_positions"):
        model.get_submodule(positions)(0, 100)  # tables grow with the longest sentence so far
    traced = torch.compile(loss, fullgraph=True, dynamic=True, backend="eager")
    for rows, source, target in ((3, 5, 6), (4, 9, 7)):
        sides = [torch.randint(4, 50, (rows, length)) for length in (source, target)]
        batch = Batch.unpadded(sides[0], sides[1], sides[1])
        with autocast(torch.device("cpu"), precision):
            torch.testing.assert_close(traced(batch), loss(batch))
    torch.compiler.reset()
