"""Beam search against trees worked by hand, enumeration of all outputs, and the model's own probabilities."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from prefix_models import (
    A,
    B,
    C,
    Prefix,
    PrefixModel,
    RandomModel,
    ScriptedModel,
    all_outputs,
    ids_of,
    plain_beam_search,
    source,
    with_lengths,
)

from nmtkit.data.padding import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.top_k import top_k
from nmtkit.machine import native_build
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, EOS, PAD

TREE: dict[Prefix, dict[int, float]] = {
    (): {A: 0.6, B: 0.4},
    (A,): {A: 0.4, B: 0.3, EOS: 0.3},
    (A, A): {EOS: 0.5, C: 0.5},
    (A, A, C): {EOS: 1.0},
    (A, B): {EOS: 1.0},
    (B,): {EOS: 0.9, C: 0.1},
}
# outputs by probability: B .36; AB, A .18; AA, AAC .12; BC .04


def test_greedy_follows_the_likeliest_token() -> None:
    tree = {**TREE, (A, A): {EOS: 0.6, C: 0.4}}
    (found,) = search(ScriptedModel(tree), *source(3), SearchConfig(beam=1))
    assert ids_of(found) == [(A, A)]
    assert found[0].token_log_probs == pytest.approx([math.log(0.6), math.log(0.4), math.log(0.6)])


def test_a_beam_of_two_finds_an_output_that_greedy_search_misses() -> None:
    config = SearchConfig(beam=2, nbest=2, length_penalty=0.0)
    (found,) = search(ScriptedModel(TREE), *source(3), config)
    # after one step A .6 and B .4 are open; then B·EOS .36 and AA .24; then AA·EOS or AAC, .12 each
    assert ids_of(found)[0] == (B,)
    assert found[0].score == pytest.approx(math.log(0.36))
    assert ids_of(found)[1] in [(A, A), (A, A, C)]
    assert found[1].score == pytest.approx(math.log(0.12))


def test_the_length_penalty_decides_between_short_and_long() -> None:
    tree = {(): {A: 0.52, B: 0.48}, (A,): {EOS: 1.0}, (B,): {C: 1.0}, (B, C): {C: 1.0}}
    short = search(ScriptedModel(tree), *source(3), SearchConfig(beam=2, length_penalty=0.0))
    long = search(ScriptedModel(tree), *source(3), SearchConfig(beam=2, length_penalty=1.0))
    assert ids_of(short[0]) == [(A,)]
    assert short[0][0].score == pytest.approx(math.log(0.52))
    assert ids_of(long[0]) == [(B, C, C)]
    assert long[0][0].score == pytest.approx(math.log(0.48) / (9 / 6))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.5])
def test_a_beam_as_wide_as_the_space_is_exhaustive(alpha: float) -> None:
    model = RandomModel(seed=1, eos=-1.0)
    limits = (3, 2, 1, 0)
    config = SearchConfig(beam=85, nbest=85, length_penalty=alpha, max_len_a=1.0, max_len_b=0)
    found = search(model, *source(*limits), config)
    for sentence, limit in enumerate(limits):
        expected = all_outputs(model, sentence, limit, alpha)
        assert len(expected) == sum(4**length for length in range(limit + 1))
        assert ids_of(found[sentence]) == [ids for _, ids in expected]
        assert [hypothesis.score for hypothesis in found[sentence]] == pytest.approx([s for s, _ in expected], rel=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_stopping_early_never_changes_the_result(beam: int, alpha: float) -> None:
    for seed in range(6):
        model = RandomModel(seed, eos=1.0)
        nbest = 1 + seed % beam
        lengths = (7, 4, 6, 1)
        config = SearchConfig(beam=beam, nbest=nbest, length_penalty=alpha, max_len_b=1)
        found = search(model, *source(*lengths), config)
        for sentence, length in enumerate(lengths):
            expected = plain_beam_search(model, sentence, length + 1, beam, alpha)[:nbest]
            assert ids_of(found[sentence]) == [ids for _, ids in expected]
            assert [h.score for h in found[sentence]] == pytest.approx([s for s, _ in expected], rel=1e-5)


def test_the_search_stops_when_no_better_output_is_possible() -> None:
    tree = {(): {A: 0.99, B: 0.01}, **{(B, *[C] * n): {C: 1.0} for n in range(30)}}
    model = ScriptedModel(tree)
    (found,) = search(model, *source(20), SearchConfig(beam=2, max_len_b=0))
    assert ids_of(found) == [(A,)]
    assert model.steps == 2


def test_output_never_exceeds_the_limit_and_has_no_pad_or_bos() -> None:
    model = RandomModel(seed=4, eos=-50.0)  # never ends by itself
    found = search(model, *source(2, 5), SearchConfig(beam=3, nbest=3, max_len_a=1.5, max_len_b=1))
    assert [{len(h.ids) for h in hypotheses} for hypotheses in found] == [{4}, {8}]
    assert not {PAD, BOS, EOS} & {token for hypotheses in found for h in hypotheses for token in h.ids}


def test_the_longest_sequence_of_the_model_limits_every_output() -> None:
    model = RandomModel(seed=4, eos=-50.0)
    model.longest_sequence = 6
    found = search(model, *source(2, 9), SearchConfig(beam=2, max_len_b=3))
    assert [len(hypotheses[0].ids) for hypotheses in found] == [5, 6]


def test_a_model_without_finite_probabilities_gives_nothing() -> None:
    class Broken(PrefixModel):
        def log_probs(self, sentence: int, prefix: Prefix) -> list[float]:
            return [math.nan] * self.size

    assert search(Broken(), *source(3, 2), SearchConfig()) == [[], []]


@pytest.mark.parametrize("width", [3, 64 * 16, 8003])
def test_without_the_compiled_build_the_best_of_each_row_match_topk(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_build, "native", None)
    scores = np.random.default_rng(1).standard_normal((40, width)).astype(np.float32)
    scores[0, -2:] = 9.0  # in what is left beside the groups
    scores[1, 1:] = -math.inf
    highest, columns = top_k(scores, 4)
    assert np.array_equal(highest, -np.sort(-scores, 1)[:, :4])
    assert np.array_equal(highest, np.take_along_axis(scores, columns, 1))
    assert all(len(set(row)) == len(row) for row in columns.tolist())


# With the real model -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["post", "pre", "window"])
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(5)
    changes: dict[str, Any] = {"attention_window": 2} if request.param == "window" else {"norm": request.param}
    config = TransformerConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=32, heads=2, **changes)
    transformer = Transformer(config, 23, 23).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.mul_(2.0)  # peaked enough for hypotheses to differ clearly
    return transformer


def sentences(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [[*torch.randint(4, 23, (n,), generator=generator).tolist(), EOS] for n in lengths]


CONFIG = SearchConfig(beam=4, nbest=3, max_len_b=5)


@torch.inference_mode()
def test_scores_equal_the_log_probabilities_of_the_model(model: Transformer) -> None:
    """Also: the cached step gives what decoding the whole prefix at once gives."""
    rows = sentences(12)
    for row, hypotheses in zip(rows, search(torch_backend(model), *pad(rows), CONFIG), strict=True):
        for hypothesis in hypotheses:
            output = [*hypothesis.ids, EOS]
            memory = model.encode(*with_lengths(torch.tensor([row])))
            logits = model.project(model.decode(torch.tensor([[BOS, *hypothesis.ids]]), memory))
            own = logits[0].log_softmax(-1)[range(len(output)), output]
            assert hypothesis.token_log_probs == pytest.approx(own.tolist(), abs=1e-4)
            penalty = ((5 + len(output)) / 6) ** 0.6
            assert hypothesis.score == pytest.approx(own.sum().item() / penalty, abs=1e-4)


def test_a_batch_gives_what_each_sentence_gives_alone(model: Transformer) -> None:
    rows = sentences(12)
    together = search(torch_backend(model), *pad(rows), CONFIG)
    alone = [search(torch_backend(model), *pad([row]), CONFIG)[0] for row in rows]
    for batched, single in zip(together, alone, strict=True):
        assert ids_of(batched) == ids_of(single)
        assert [h.score for h in batched] == pytest.approx([h.score for h in single], abs=1e-4)
