"""The encoder and the decoder of a training, each compiled as a whole: few graphs for micro-batches of all shapes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from native_builds import use_torch
from packed_attention import attend_within_sentences
from torch.testing import assert_close

from nmtkit.data.batch import make_batch
from nmtkit.data.packing import MicroBatchTensors, make_packed_batch
from nmtkit.machine.precision import autocast
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.model.lora import add_low_rank
from nmtkit.model.lora_config import LoraConfig
from nmtkit.text.vocabulary import EOS
from nmtkit.training import compiling
from nmtkit.training.compiling import compile_model
from nmtkit.training.loss import MicroBatchLoss

CPU = torch.device("cpu")
SIZES = (5, 30), (40, 9), (13, 3), (90, 12), (2, 80)  # sentences, and tokens of the longest; tables of positions grow
Graphs = list[torch.fx.GraphModule]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # of torch, while it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # the same
]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """The graphs that are compiled in a test, which run as they are. Code that is not a single graph is an error."""
    compiled: Graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(graph)
        return graph

    monkeypatch.setattr(compiling, "import_nothing_from_current_folder", lambda: None)
    monkeypatch.setattr(compiling, "_try", lambda device: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep, fullgraph=True))
    monkeypatch.setattr("nmtkit.training.loss.kernel_for", lambda *facts: attend_within_sentences)
    torch.compiler.reset()
    yield compiled
    torch.compiler.reset()


def micro_batch(packed: bool, sentences: int, longest: int) -> MicroBatchTensors:
    """A micro-batch of random sentences, some of them shorter than the longest."""
    random = np.random.default_rng(sentences)
    sides: list[Any] = []
    for _ in range(2):
        lengths = np.append(random.integers(1, longest, sentences - 1, endpoint=True), longest).astype(np.int32)
        ids = random.integers(EOS + 1, 50, lengths.sum())
        ids[lengths.cumsum() - 1] = EOS
        sides += [ids, lengths]
    return (make_packed_batch if packed else make_batch)(*sides)


def make_loss(lora: bool = False, **options: Any) -> MicroBatchLoss:
    """A tiny model with its loss, always with the same weights."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "heads": 2}
    model = make_model(TransformerConfig(**sizes, dropout=0.0, **options), 50, 50)
    if lora:
        add_low_rank(model, LoraConfig(lora_rank=2))
    return MicroBatchLoss(model, smoothing=0.1).train()


def results(loss: MicroBatchLoss, batch: MicroBatchTensors) -> list[torch.Tensor | None]:
    """Loss, negative log-likelihood and all gradients."""
    loss.zero_grad(set_to_none=True)
    sums = loss(batch)
    torch.autograd.backward(sums[0])
    return [*sums, *(parameter.grad for parameter in loss.parameters())]


def assert_same_results(compiled: MicroBatchLoss, plain: MicroBatchLoss, batches: Sequence[MicroBatchTensors]) -> None:
    compile_model(compiled.model, CPU)
    for batch in batches:
        assert_close(results(compiled, batch), results(plain, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "packed"), [(torch.float32, False), (torch.bfloat16, True)])
def test_micro_batches_of_all_shapes_share_the_graphs_of_encoder_and_decoder(
    precision: torch.dtype, packed: bool, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmtkit.model.attention._fused_pays", lambda q, k: True)  # as on a GPU, like the next
    use_torch(monkeypatch)
    compiled, plain = make_loss(), make_loss()
    batches = [micro_batch(packed, *sizes) for sizes in SIZES]
    with autocast(CPU, precision):
        assert_same_results(compiled, plain, batches)
        assert len(graphs) == (1 if packed else 2)
        with torch.inference_mode():
            for batch in batches:
                assert_close(compiled.eval()(batch), plain.eval()(batch))
    assert len(graphs) == (2 if packed else 4)


@pytest.mark.parametrize("packed", [False, True])
def test_no_graph_looks_up_rows_whose_gradients_it_would_have_to_add(packed: bool, graphs: Graphs) -> None:
    loss = make_loss(positions="learned", max_positions=100)
    compile_model(loss.model, CPU)
    results(loss, micro_batch(packed, 5, 30))
    called = {str(getattr(node.target, "__name__", node.target)) for graph in graphs for node in graph.graph.nodes}
    assert "softmax" in called or "layer_norm" in called
    assert not called & {"embedding", "index_select", "gather", "scatter_add"}


def test_packed_batches_without_a_kernel_are_not_compiled(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.training.loss.kernel_for", lambda *facts: None)
    assert_same_results(make_loss(), make_loss(), [micro_batch(True, 5, 30)])
    assert not graphs


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"norm": "pre"}, 1),
        ({"positions": "learned", "max_positions": 100}, 1),
        ({"positions": "fairseq", "activation": "gelu"}, 1),
        ({"share_embeddings": "none", "output_bias": True}, 1),
        ({"attention_window": 3}, 2),  # short sentences have a graph without blocks
        ({"norm_type": "rms", "activation": "swiglu", "positions": "rotary", "qk_norm": True, "bias": False}, 1),
        ({"lora": True}, 1),
        ({"activation_checkpointing": True}, 1),
    ],
)
def test_lengths_add_no_graphs_with_these_options(
    packed: bool, options: dict[str, Any], lengths: int, graphs: Graphs
) -> None:
    checkpointing = options.pop("activation_checkpointing", False)
    compiled, plain = make_loss(**options), make_loss(**options)
    compiled.model.activation_checkpointing = checkpointing
    assert_same_results(compiled, plain, [micro_batch(packed, *sizes) for sizes in SIZES])
    assert len(graphs) == (1 if packed else 2 * lengths)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_a_decoder_with_ssrus_has_a_graph_for_each_power_of_two_of_the_length(packed: bool, graphs: Graphs) -> None:
    compiled, plain = (make_loss(decoder_recurrence="ssru") for _ in range(2))
    assert_same_results(compiled, plain, [micro_batch(packed, *sizes) for sizes in SIZES])
    assert len(graphs) == 4 + (not packed)
