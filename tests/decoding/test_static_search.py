"""The search with steps of constant shapes, and with pretended CUDA graphs of them: the outputs of the usual search."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpu import GPU, fake_gpu
from operator_counts import OperatorCounts
from pretended_graph import PretendedGraph, address, pretend_graphs, tensors_in
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.batch import pad
from nmtkit.decoding import fixed_search as module
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.fixed_search import fixed_search
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.protocol import columns_of
from nmtkit.inference.static_cache import BUCKET
from nmtkit.inference.static_transformer import GraphTransformer, StaticTransformer
from nmtkit.inference.torch_transformer import TorchTransformer
from nmtkit.text.vocabulary import EOS

MakeCheckpoint = Callable[..., Checkpoint]
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned", "max_positions": 45},
}


def find(
    backend: type[TorchTransformer], checkpoint: Checkpoint, config: SearchConfig, rows: list[list[int]]
) -> list[Hypothesis]:
    """The best outputs on the fake GPU, of a model whose hypotheses hardly ever end before the limit."""
    model: Any = backend(checkpoint.build_model().to(GPU))  # type: ignore[arg-type]
    logits = model.logits

    def without_end(tokens: torch.Tensor, state: Any) -> torch.Tensor:
        found: torch.Tensor = logits(tokens, state)
        found[:, EOS] -= 5.0
        return found

    model.logits = without_end
    src, lengths = (tensor.to(GPU) for tensor in pad(rows))
    return [nbest[0] for nbest in fixed_search(model, src, lengths, config, [(11,)])]


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [each.ids for each in found] == [each.ids for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-6, abs=1e-5)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-6, abs=1e-5)


def random_rows(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [[*torch.randint(4, 50, (length,), generator=generator).tolist(), EOS] for length in lengths]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beam", [1, 4])
def test_outputs_are_the_same_in_several_buckets_while_sentences_leave(
    beam: int, name: str, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, sizes = make_checkpoint(**MODELS[name]), []
    leave = module._FixedBeam.leave

    def watched(beam: Any, *rest: Any) -> None:
        leave(beam, *rest)
        sizes.append(len(beam.sentences))

    monkeypatch.setattr(module._FixedBeam, "leave", watched)
    rows, config = random_rows(3, 24, 5, 13, 30, 8, 17), SearchConfig(beam=beam, max_len_a=2.2, max_len_b=0, min_len=4)
    with fake_gpu(monkeypatch):
        pretend_graphs(monkeypatch)
        expected = find(TorchTransformer, checkpoint, config, rows)
        for backend in (StaticTransformer, GraphTransformer):
            assert_same(find(backend, checkpoint, config, rows), expected)
    assert len(sizes) > 3  # more than one for each search
    longest = max(len(each.ids) for each in expected)
    assert longest > (BUCKET if name == "learned positions" else 2 * BUCKET)


@pytest.mark.parametrize("least", [0, 36])
def test_graphs_are_captured_once_for_each_bucket_set_of_excluded_tokens_and_step_in_turn(
    least: int, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, config = make_checkpoint(), SearchConfig(beam=3, max_len_a=0.0, max_len_b=40, min_len=least)
    with fake_gpu(monkeypatch):
        pretend_graphs(monkeypatch)
        expected = find(TorchTransformer, checkpoint, config, random_rows(4, 4))
        assert_same(find(GraphTransformer, checkpoint, config, random_rows(4, 4)), expected)
    assert [len(each.ids) for each in expected] == [40, 40]
    second_bucket = [1, 1, 1, 1] if least else [3, 3]  # the two first steps of a kind have no graph
    assert [graph.replays for graph in PretendedGraph.made] == [15, 15, *second_bucket]


class Signatures(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators with shapes and Python values, and the addresses of memory that was not allocated within."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[object] = []
        self.addresses: list[int] = []
        self._own: set[int] = set()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        places = [address(tensor) for tensor in inputs if tensor.dim()]  # without numbers, such as -inf
        result = operator(*args, **kwargs)
        described = tree_map(lambda leaf: leaf.shape if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
        self.operators.append((operator.name(), described))
        self.addresses += [place for place in places if place not in self._own]
        self._own.update({*map(address, tensors_in(result))} - {*places})
        return result


@pytest.mark.parametrize("beam", [1, 4])
def test_steps_of_a_bucket_have_the_same_operators_and_shapes_and_use_the_same_memory_in_turn(
    beam: int, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, steps = make_checkpoint(), list[Signatures]()
    with fake_gpu(monkeypatch), torch.inference_mode():
        model = StaticTransformer(checkpoint.build_model().to(GPU))  # type: ignore[arg-type]
        src, lengths = (tensor.to(GPU) for tensor in pad(random_rows(4, 7)))
        state = model.start_fixed(model.encode(src, lengths), 2, beam)
        tokens, excluded = torch.full((2 * beam,), 9, device=GPU), (7,)
        columns_of(excluded, GPU)  # cached
        origins = torch.arange(2 * beam, device=GPU).view(2, beam).flip(1).flatten()
        kept = []  # results stay, so that no step can be given the memory of an earlier one
        for _ in range(BUCKET + 2):
            state.reserve()
            with Signatures() as signatures:
                kept.append(model.best_step(tokens, state, 4, excluded))
            steps.append(signatures)
            state.reorder_fixed(origins, beam)
    first, second, bucket = steps[0], steps[1], steps[:BUCKET]
    assert all(step.operators == first.operators for step in bucket)
    assert all(step.addresses == (second if number % 2 else first).addresses for number, step in enumerate(bucket))
    assert steps[BUCKET].operators != first.operators


def count_operators(backend: type[TorchTransformer], checkpoint: Checkpoint, length: int) -> Counter[str]:
    config = SearchConfig(beam=4, max_len_a=0.0, max_len_b=length, min_len=length)
    with OperatorCounts() as counted:
        find(backend, checkpoint, config, random_rows(4, 1))
    counts: Counter[str] = counted.counts
    return counts


@pytest.mark.parametrize(
    ("backend", "step", "layer"), [(TorchTransformer, 67, 19), (StaticTransformer, 70, 19), (GraphTransformer, 31, 0)]
)
def test_a_step_and_a_layer_of_it_have_at_most_so_many_operators(
    backend: type[TorchTransformer],
    step: int,
    layer: int,
    make_checkpoint: MakeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = [make_checkpoint(decoder_layers=layers) for layers in (1, 2)]
    with fake_gpu(monkeypatch):
        pretend_graphs(monkeypatch)
        monkeypatch.setattr(PretendedGraph, "replay", lambda graph: None)
        count_operators(backend, checkpoints[0], 14)  # the first search uploads tables that others share
        shallow, deep = (
            count_operators(backend, checkpoint, 14) - count_operators(backend, checkpoint, 10)
            for checkpoint in checkpoints
        )
    assert shallow.total() <= 4 * step, shallow
    assert (deep - shallow).total() <= 4 * layer, deep - shallow


@pytest.mark.parametrize("backend", [StaticTransformer, GraphTransformer])
def test_the_host_does_not_wait_in_a_step(
    backend: type[TorchTransformer], make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, waits = make_checkpoint(), list[str]()
    advance = module._FixedBeam.advance
    with fake_gpu(monkeypatch) as gpu:
        pretend_graphs(monkeypatch)

        def watched(*arguments: Any) -> None:
            gpu.waits.clear()
            advance(*arguments)
            waits.extend(gpu.waits)

        monkeypatch.setattr(module._FixedBeam, "advance", watched)
        find(backend, checkpoint, SearchConfig(beam=4, max_len_a=0, max_len_b=40), random_rows(4, 7))
    assert set(waits) <= {"torch.tensor", "torch.Tensor.to"}, waits
    assert len(waits) <= 3  # the forbidden tokens, and larger tables of positions
