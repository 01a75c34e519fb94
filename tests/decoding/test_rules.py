"""What must not come and what must: against a search that asks about every prefix, and worked by hand."""

import itertools
import math
from typing import Any

import pytest
from prefix_models import A, Allowed, B, C, Prefix, RandomModel, ids_of, plain_beam_search, score, source

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import search
from nmtkit.text.vocabulary import EOS

LENGTHS = (6, 4, 5, 1)


def no_repeat(order: int) -> Allowed:
    def allowed(prefix: Prefix, token: int) -> bool:
        longer = (*prefix, token)
        ngrams = [longer[i : i + order] for i in range(len(longer) - order + 1)]
        return len(ngrams) == len(set(ngrams))

    return allowed


def not_banned(prefix: Prefix, token: int) -> bool:
    return (*prefix, token)[-2:] not in [(A, B), (C, C)] and token != 1


ALLOWED: dict[str, tuple[dict[str, Any], list[Prefix], Allowed]] = {
    "min_len": ({"min_len": 3}, [], lambda prefix, token: len(prefix) >= 3 or token != EOS),
    "no_repeat_1": ({"no_repeat_ngram": 1}, [], no_repeat(1)),
    "no_repeat_2": ({"no_repeat_ngram": 2}, [], no_repeat(2)),
    "banned": ({}, [(A, B), (C, C), (1,)], not_banned),
}


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_search_with_rules_finds_the_same_as_a_plain_search(name: str, alpha: float) -> None:
    options, banned, allowed = ALLOWED[name]
    for seed, beam in itertools.product(range(4), (1, 3)):
        model = RandomModel(seed, eos=1.0)
        config = SearchConfig(beam=beam, nbest=beam, length_penalty=alpha, max_len_b=2, **options)
        found = search(model, *source(*LENGTHS), config, banned=banned)
        for sentence, length in enumerate(LENGTHS):
            expected = plain_beam_search(model, sentence, length + 2, beam, alpha, allowed)
            assert ids_of(found[sentence]) == [ids for _, ids in expected]
            assert [h.score for h in found[sentence]] == pytest.approx([s for s, _ in expected], rel=1e-5)


def test_the_length_limit_overrides_the_minimum_length() -> None:
    found = search(RandomModel(1), *source(2), SearchConfig(beam=2, max_len_a=0, max_len_b=3, min_len=50))
    assert len(found[0][0].ids) == 3


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_prefix_is_forced_and_the_rest_is_searched(alpha: float) -> None:
    prefixes: list[Prefix] = [(A, B, A), (), (C,), (B, C)]
    for seed, beam in itertools.product(range(4), (1, 3)):
        model = RandomModel(seed, eos=1.0)
        config = SearchConfig(beam=beam, nbest=beam, length_penalty=alpha, max_len_b=2)
        found = search(model, *source(*LENGTHS), config, constraints=[Constraints(prefix) for prefix in prefixes])
        for sentence, (length, forced) in enumerate(zip(LENGTHS, prefixes, strict=True)):

            def allowed(prefix: Prefix, token: int, forced: Prefix = forced) -> bool:
                return len(prefix) >= len(forced) or token == forced[len(prefix)]

            expected = plain_beam_search(model, sentence, length + 2, beam, alpha, allowed)
            assert ids_of(found[sentence]) == [ids for _, ids in expected]
            assert [h.score for h in found[sentence]] == pytest.approx([s for s, _ in expected], rel=1e-5)


def test_a_prefix_overrides_rules_and_the_length_limit() -> None:
    config = SearchConfig(beam=2, max_len_a=0, max_len_b=1, no_repeat_ngram=1)
    constraints = [Constraints((A, A, B)), Constraints()]
    found = search(RandomModel(1), *source(2, 2), config, constraints=constraints, banned=[(B,)])
    assert found[0][0].ids == [A, A, B]
    assert found[0][0].score == pytest.approx(score(RandomModel(1), 0, (A, A, B), 0.6), rel=1e-5)
    assert len(found[1][0].ids) <= 1


@pytest.mark.parametrize(("form", "penalty"), [("gnmt", (8 / 6) ** 0.8), ("power", 3**0.8)])
def test_each_form_of_the_length_penalty_follows_its_formula(form: str, penalty: float) -> None:
    model = RandomModel(3)
    config = SearchConfig(beam=85, nbest=85, length_penalty=0.8, length_penalty_form=form, max_len_b=0)
    (found,) = search(model, *source(3), config)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    (two,) = [h for h in found if h.ids == [A, C]]
    assert two.score == pytest.approx(sum(two.token_log_probs) / penalty, rel=1e-5)
    assert len(found) == 85


def test_a_huge_length_penalty_gives_finite_scores() -> None:
    for form in ("gnmt", "power"):
        config = SearchConfig(beam=2, length_penalty=500, length_penalty_form=form, max_len_b=20)
        (found,) = search(RandomModel(3), *source(3), config)
        assert math.isfinite(found[0].score)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_early_stopping_with_the_power_penalty_finds_the_best_output(alpha: float) -> None:
    for seed in range(6):
        model = RandomModel(seed, eos=1.0)
        config = SearchConfig(beam=3, length_penalty=alpha, length_penalty_form="power", max_len_b=1)
        (found,) = search(model, *source(6), config)
        outputs = plain_beam_search(model, 0, 7, 3, 0.0)
        scored = [(total / (len(ids) + 1) ** alpha, ids) for total, ids in outputs]
        assert ids_of(found) == [max(scored)[1]]
