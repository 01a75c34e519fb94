"""The search with fixed shapes: the outputs of `search`, and steps in which the host does not wait for the GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import small_rivals
import torch
from fake_gpu import GPU, fake_gpu
from torch import Tensor
from torch.testing import assert_close

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.padding import pad
from nmtkit.decoding import fixed_search as module
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.engine import can_be_fixed
from nmtkit.decoding.fixed_search import fixed_search
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import Hypothesis, search
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.torch_backend import fixed_model
from nmtkit.inference.torch_inference import log_sum_exp
from nmtkit.text.vocabulary import EOS

MakeCheckpoint = Callable[..., Checkpoint]
ROWS = [[5, 9, 7, 30, EOS], [12, EOS], [40, 8, 8, 21, 17, 6, EOS], [9, 9, EOS], [33, 4, 18, 7, 7, 25, 31, 11, 6, EOS]]
CONFIGS: dict[str, dict[str, Any]] = {
    "beam 4": {"beam": 4},
    "greedy": {"beam": 1},
    "beam wider than the number of candidates": {"beam": 70},
    "limits reached at different steps": {"beam": 3, "max_len_a": 0.5, "max_len_b": 1},
    "minimum length equal to the maximum": {"beam": 3, "min_len": 6, "max_len_a": 0.0, "max_len_b": 6},
    "minimum length above the maximum": {"beam": 2, "min_len": 9, "max_len_b": 0},
    "no penalty": {"beam": 4, "length_penalty": 0.0},
}
BANNED = ((11,), (13,))


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[each.ids for each in nbest] for nbest in found] == [[each.ids for each in nbest] for nbest in expected]
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-6, abs=1e-5)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, rel=1e-6, abs=1e-5)


def both(
    model: InferenceModel,
    rows: list[list[int]],
    config: SearchConfig,
    banned: Sequence[tuple[int, ...]] = BANNED,
    starts: Sequence[Sequence[int]] = (),
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    src, lengths = pad(rows)
    return fixed_search(fixed_model(model), src, lengths, config, banned, starts), search(
        model, src, lengths, config, banned=banned, starts=starts
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_fixed_shapes_give_the_outputs_of_the_search(name: str, make_checkpoint: MakeCheckpoint) -> None:
    config = SearchConfig(**({"max_len_a": 1.0, "max_len_b": 12} | CONFIGS[name]))
    for seed in range(1, 4):
        model = torch_backend(make_checkpoint(seed).build_model())
        assert_same(*both(model, ROWS, config))
        assert_same(*both(model, ROWS, config, starts=[(7 + number,) for number in range(len(ROWS))]))


def without_end(logits: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Logits of a model whose hypotheses hardly ever end before the limit."""

    def changed(tokens: Tensor, state: Any) -> Tensor:
        found = logits(tokens, state)
        found[:, EOS] -= 9.0
        return found

    return changed


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_outputs_are_the_same_while_sentences_leave_the_batch(
    beam: int, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    leave = module._FixedBeam.leave

    def watched(beam: Any, *rest: Any) -> None:
        leave(beam, *rest)
        sizes.append(len(beam.sentences))

    monkeypatch.setattr(module._FixedBeam, "leave", watched)
    generator = torch.Generator().manual_seed(2)
    rows = [[*torch.randint(4, 50, (n,), generator=generator).tolist(), EOS] for n in range(2, 26)]
    model: Any = torch_backend(make_checkpoint().build_model())
    model.model.logits = without_end(model.model.logits)
    found, expected = both(model, rows, SearchConfig(beam=beam, max_len_b=2))
    assert_same(found, expected)
    assert len({len(nbest[0].ids) for nbest in expected}) > 10
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 2


@pytest.mark.parametrize("arch", ["gnmt", "convs2s", "ensemble"])
def test_every_backend_of_torch_searches_with_fixed_shapes(arch: str, make_checkpoint: MakeCheckpoint) -> None:
    config = SearchConfig(beam=3, max_len_b=12)
    if arch == "ensemble":
        model: InferenceModel = Ensemble([torch_backend(make_checkpoint(seed).build_model()) for seed in (1, 2)])
    else:
        model = torch_backend(small_rivals.make(arch, 50, 50).eval().float())
    assert_same(*both(model, ROWS, config))


def test_only_searches_without_rules_of_a_hypothesis_have_fixed_shapes() -> None:
    assert can_be_fixed("cuda:0", SearchConfig(beam=4, min_len=3), [Constraints()], [(7,)])
    assert not can_be_fixed("cpu", SearchConfig(), [], [])
    assert not can_be_fixed("cuda:0", SearchConfig(), [], [(7, 8)])
    for constraint in (Constraints(prefix=(5,)), Constraints(terms=(((5, 6),),))):
        assert not can_be_fixed("cuda:0", SearchConfig(), [Constraints(), constraint], [])
    for other in (
        {"nbest": 2, "beam": 2},
        {"sampling": True, "beam": 1},
        {"beam": 4, "diverse_groups": 2},
        {"no_repeat_ngram": 2},
    ):
        assert not can_be_fixed("cuda:0", SearchConfig(**other), [], []), other  # type: ignore[arg-type]


def test_the_host_waits_neither_in_a_step_nor_for_the_end_of_the_search(
    make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint()
    config = SearchConfig(beam=4, min_len=20, max_len_a=0, max_len_b=40)
    waits: list[str] = []
    advance = module._FixedBeam.advance
    with fake_gpu(monkeypatch) as gpu:
        model: Any = torch_backend(checkpoint.build_model().to(GPU))
        model.model.model.target_positions(0, 100)  # a table that grows

        def watched(*arguments: Any) -> None:
            gpu.waits.clear()
            advance(*arguments)
            waits.extend(gpu.waits)

        monkeypatch.setattr(module._FixedBeam, "advance", watched)
        found = fixed_search(fixed_model(model), *pad(ROWS), config, BANNED)
        assert not [name for name in waits if name != "torch.tensor"]
        assert waits.count("torch.tensor") <= 2  # the forbidden tokens, until the shortest length and after it
    monkeypatch.undo()
    src, lengths = pad(ROWS)
    assert_same(found, search(torch_backend(checkpoint.build_model()), src, lengths, config, banned=BANNED))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)])
def test_the_normalizer_of_logits_in_16_bits_is_exact_enough(dtype: torch.dtype, error: float) -> None:
    logits = (4 * torch.randn(50, 30_000, generator=torch.Generator().manual_seed(1))).to(dtype)
    logits[:, 1] = -torch.inf
    expected = logits.double().logsumexp(1, keepdim=True).float()
    assert_close(log_sum_exp(logits), expected, atol=error, rtol=0)
