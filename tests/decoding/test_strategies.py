"""Sampling: shares counted, and scores of the model."""

from collections import Counter
from typing import Any

import pytest
from prefix_models import A, B, C, Prefix, RandomModel, ScriptedModel, ids_of, score, source

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.text.vocabulary import UNK

TREE: dict[Prefix, dict[int, float]] = {(): {A: 0.5, B: 0.3, C: 0.15, UNK: 0.05}}


def shares(**options: Any) -> dict[int, float]:
    """What part of 4000 draws each first token has."""
    config = SearchConfig(sampling=True, nbest=4000, **options)
    (found,) = search(ScriptedModel(TREE), *source(2), config)
    assert len(found) == 4000
    counts = Counter(hypothesis.ids[0] for hypothesis in found)
    return {token: count / 4000 for token, count in counts.items()}


def test_tokens_are_drawn_by_their_probabilities() -> None:
    assert shares() == pytest.approx(TREE[()], abs=0.03)


def test_temperature_sharpens_or_flattens() -> None:
    total = sum(p**2 for p in TREE[()].values())
    assert shares(temperature=0.5) == pytest.approx({token: p**2 / total for token, p in TREE[()].items()}, abs=0.03)
    assert shares(temperature=0.01) == {A: 1.0}
    assert shares(temperature=100.0)[UNK] == pytest.approx(0.25, abs=0.03)


def test_top_k_and_top_p_keep_the_likeliest_tokens() -> None:
    assert shares(top_k=2) == pytest.approx({A: 0.625, B: 0.375}, abs=0.03)
    assert shares(top_k=1) == {A: 1.0}
    assert shares(top_p=0.79) == pytest.approx({A: 0.625, B: 0.375}, abs=0.03)
    assert shares(top_p=0.81) == pytest.approx({A: 0.5 / 0.95, B: 0.3 / 0.95, C: 0.15 / 0.95}, abs=0.03)
    assert shares(top_p=0.01) == {A: 1.0}
    assert shares(top_k=3, top_p=0.5) == pytest.approx({A: 1.0}, abs=0.03)  # of 0.95, A alone has more than half


def test_top_p_keeps_the_fewest_tokens_and_their_ties() -> None:
    tree: dict[Prefix, dict[int, float]] = {(): {A: 0.5, B: 0.25, C: 0.25}}
    for top_p, expected in ((0.5, {A}), (0.51, {A, B, C})):  # of tokens as likely as each other all come
        (found,) = search(ScriptedModel(tree), *source(2), SearchConfig(sampling=True, nbest=100, top_p=top_p))
        assert {hypothesis.ids[0] for hypothesis in found} == expected


def test_scores_of_samples_equal_those_of_the_model() -> None:
    model = RandomModel(2)
    config = SearchConfig(sampling=True, nbest=30, temperature=3.0, top_k=4, max_len_b=1)
    (found,) = search(model, *source(4), config)
    assert len(set(ids_of(found))) > 10
    assert [h.score for h in found] == pytest.approx([score(model, 0, tuple(h.ids), 0.6) for h in found], rel=1e-5)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert all(len(h.ids) <= 5 for h in found)


def test_the_rules_hold_for_samples() -> None:
    config = SearchConfig(sampling=True, nbest=50, min_len=2, no_repeat_ngram=1, max_len_b=2)
    (found,) = search(RandomModel(5, eos=2.0), *source(2), config, banned=[(B,)])
    for hypothesis in found:
        assert 2 <= len(hypothesis.ids) == len(set(hypothesis.ids))
        assert B not in hypothesis.ids


def test_the_temperature_is_applied_before_top_p() -> None:
    """At temperature 0.5 the first token has 0.68 of the probability, at 2 it has 0.37."""
    assert shares(top_p=0.6, temperature=0.5) == {A: 1.0}
    assert set(shares(top_p=0.6, temperature=2.0)) == {A, B}
