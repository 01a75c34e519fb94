"""Searches restricted to shortlists: the compiled one against masked torch models, sentence by sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from in_tensors import InTensors, native, search
from native_builds import BUILDS, use_build
from prefix_models import with_lengths
from small_transformers import W, make, sentences
from torch import Tensor
from torch.testing import assert_close

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.native_transformer import NativeTransformer
from nmtkit.inference.protocol import InferenceModel
from nmtkit.inference.shortlist import Ids
from nmtkit.machine import threads
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, PAD, UNK

SRC = sentences(7, 1, 12, 3, 5)
LENGTHS = with_lengths(SRC)[1]
ALL = np.array([number for number in range(W) if number not in NEVER_OUTPUT], dtype=np.int32)
CONFIGS = [
    SearchConfig(beam=1, max_len_b=8),
    SearchConfig(beam=5, nbest=5, max_len_b=8),
    SearchConfig(beam=4, nbest=4, diverse_groups=2, max_len_b=8),
    SearchConfig(beam=3, no_repeat_ngram=2, max_len_b=8),
    SearchConfig(sampling=True, nbest=3, max_len_b=8),
]
configs = pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "beam", "diverse", "rules", "sampled"])
precisions = pytest.mark.parametrize("precision", ["fp32", "int8"])


@pytest.fixture(autouse=True, params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with every build that this CPU supports."""
    use_build(request.param, monkeypatch)


def shortlists(sentences: int = len(SRC)) -> list[Ids]:
    """Lists of different tokens and lengths."""
    generator = np.random.default_rng(1)
    return [
        np.unique([UNK, EOS, *generator.choice(np.arange(EOS + 1, W), 3 + number)]).astype(np.int32)
        for number in range(sentences)
    ]


def weights(**changes: int) -> Transformer:
    return make(output_bias=True, **changes).float().eval()


def model(**changes: int) -> InferenceModel:
    """The reference: masked by torch."""
    return torch_backend(weights(**changes))


def compiled(precision: str = "fp32", **changes: int) -> NativeTransformer:
    return native(weights(**changes), precision, model)


def found(model: InferenceModel, lists: Sequence[Ids], config: SearchConfig) -> list[list[Hypothesis]]:
    return search(model.restricted_to(lists), SRC, LENGTHS, config)


def step(model: Any, rows: Sequence[int]) -> Tensor:
    """The log-probabilities of the second step, in rows that belong to these sentences."""
    with torch.inference_mode():
        model = InTensors(model)
        state = model.start(model.encode(SRC, LENGTHS))
        model.step(torch.full((len(SRC),), BOS), state)
        state.reorder(torch.tensor(rows))
        log_probs: Tensor = model.step(torch.tensor(rows) + EOS, state)
        return log_probs


ROWS = (0, 0, 0, 1, 1, 3, 4, 4, 4, 4, 4, 4, 4)


@pytest.mark.parametrize("width", [12, 264])
def test_probabilities_are_normalized_over_the_shortlist_of_each_sentence(width: int) -> None:
    lists, everything = shortlists(), step(model(d_model=width), ROWS)
    restricted = step(compiled(d_model=width).restricted_to(lists), ROWS)
    for row, sentence in enumerate(ROWS):
        ids = torch.from_numpy(lists[sentence]).long()
        assert_close(restricted[row, ids], everything[row, ids].log_softmax(0), rtol=1e-4, atol=1e-4)
        assert (restricted[row].isfinite().nonzero().squeeze(1) == ids).all()


@pytest.mark.parametrize("width", [12, 264])
def test_int8_log_probabilities_are_those_of_the_whole_matrix_but_for_rounding_in_the_softmax(width: int) -> None:
    native_model = compiled("int8", d_model=width)
    whole, chosen = (step(each, ROWS)[:, ALL] for each in (native_model, native_model.restricted_to([ALL] * len(SRC))))
    assert_close(chosen, whole, rtol=1e-6, atol=1e-6)


@configs
def test_the_compiled_search_finds_the_outputs_of_the_masked_model(config: SearchConfig) -> None:
    expected, own = (found(each, shortlists(), config) for each in (model(), compiled()))
    assert [[one.ids for one in nbest] for nbest in own] == [[one.ids for one in nbest] for nbest in expected]
    scores = [[one.score for nbest in results for one in nbest] for results in (own, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@precisions
@configs
def test_results_do_not_depend_on_the_batch_or_the_number_of_threads(
    precision: str, config: SearchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_model, lists = compiled(precision), shortlists()
    together = found(native_model, lists, config)
    for row, ids, expected in zip(SRC, lists, together, strict=True):
        alone = native_model.restricted_to([ids])
        assert search(alone, *with_lengths(row[row != PAD].unsqueeze(0)), config) == [expected]
    monkeypatch.setattr(threads, "_threads", 3)
    assert found(native_model, lists, config) == together


def test_the_models_of_an_ensemble_are_restricted() -> None:
    lists, config = shortlists(), CONFIGS[1]
    expected, own = (
        found(Ensemble([first, model(decoder_layers=1)]), lists, config) for first in (model(), compiled())
    )
    assert [[one.ids for one in nbest] for nbest in own] == [[one.ids for one in nbest] for nbest in expected]
    allowed = [set(ids.tolist()) for ids in lists]
    assert all(set(one.ids) <= ids for nbest, ids in zip(own, allowed, strict=True) for one in nbest)


def test_required_tokens_may_be_in_the_shortlist_alone() -> None:
    lists = [np.array([UNK, EOS, 9, 12], dtype=np.int32)] * len(SRC)
    constraints = [Constraints((9,), (((12,),),))] * len(SRC)
    for each in (model(), compiled()):
        nbests = search(each.restricted_to(lists), SRC, LENGTHS, SearchConfig(max_len_b=8), constraints)
        assert all(nbest[0].ids[0] == 9 and 12 in nbest[0].ids for nbest in nbests)


@pytest.mark.parametrize(
    "wrong", [[], [5, 4], [4, 4], [PAD, 5], [BOS, 5], [5, W], [-1, 5]], ids=lambda ids: "-".join(map(str, ids))
)
def test_malformed_shortlists_are_an_index_error(wrong: list[int]) -> None:
    native_model = compiled()
    lists = [np.array(wrong, dtype=np.int32), *shortlists(len(SRC) - 1)]
    with torch.inference_mode(), pytest.raises(IndexError):
        native_model.restricted_to(lists).start(native_model.encode(SRC.numpy(), LENGTHS.numpy()))
