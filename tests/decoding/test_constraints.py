"""Required terms: compared with all outputs that contain them, and with a reference search of one beam a progress."""

import math

import pytest
from prefix_models import A, B, C, Prefix, PrefixModel, RandomModel, all_outputs, ids_of, score, source

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.rules import Constraints, Term
from nmtkit.decoding.search import search
from nmtkit.errors import UserError
from nmtkit.text.vocabulary import BOS, EOS, PAD

TERMS: list[tuple[Term, ...]] = [
    (((A, B),),),
    (((C,),), ((B, A),)),
    (),
    (((A, A, B),), ((A, C),)),
    (((A, B),), ((B, C),)),
    (((B,),), ((A, B),)),
    (((A, B, A), (C,)), ((B, C), (A,))),  # with two spellings each
]
LENGTHS = (5, 3, 4, 6, 2, 1, 5)


def has(ids: Prefix, term: Term) -> bool:
    return any(ids[i : i + len(form)] == form for form in term for i in range(len(ids)))


def size(term: Term) -> int:
    return max(map(len, term))


def progress(ids: Prefix, terms: tuple[Term, ...]) -> int:
    """The tokens of the terms that are there, and the most of a missing one that stands at the end."""
    missing = [form for term in terms if not has(ids, term) for form in term]
    begun = [n for form in missing for n in range(len(form)) if n <= len(ids) and ids[len(ids) - n :] == form[:n]]
    return sum(size(term) for term in terms if has(ids, term)) + max(begun, default=0)


def plain_constrained_search(
    model: PrefixModel, sentence: int, limit: int, beam: int, alpha: float, terms: tuple[Term, ...]
) -> list[tuple[float, Prefix]]:
    """A beam for each progress, and no early stop."""
    last = sum(map(size, terms))
    beams: dict[int, list[tuple[float, Prefix]]] = {0: [(0.0, ())]}
    finished: list[Prefix] = []
    for length in range(limit + 1):
        candidates = [
            (log_prob + step, (*prefix, token))
            for hypotheses in beams.values()
            for log_prob, prefix in hypotheses
            for token, step in enumerate(model.log_probs(sentence, prefix))
            if token not in (PAD, BOS) and (token == EOS or length < limit)
            if token != EOS or all(has(prefix, term) for term in terms)
        ]
        beams = {}
        for level in range(last + 1):
            own = [(total, ids) for total, ids in candidates if progress(ids, terms) == level]
            best = sorted(own, reverse=True)[: beam - (len(finished) if level == last else 0)]
            finished += [ids[:-1] for _, ids in best if ids[-1] == EOS]
            beams[level] = [(total, ids) for total, ids in best if ids[-1] != EOS]
        if len(finished) == beam:
            break
    return sorted(((score(model, sentence, ids, alpha), ids) for ids in finished), reverse=True)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.2])
def test_the_search_keeps_a_separate_beam_for_each_level_of_progress(beam: int, alpha: float) -> None:
    for seed in range(4):
        model = RandomModel(seed, eos=1.0)
        config = SearchConfig(beam=beam, nbest=beam, length_penalty=alpha, max_len_b=1)
        found = search(model, *source(*LENGTHS), config, constraints=[Constraints(terms=terms) for terms in TERMS])
        for sentence, (length, terms) in enumerate(zip(LENGTHS, TERMS, strict=True)):
            limit = max(length + 1, sum(map(size, terms)))
            expected = plain_constrained_search(model, sentence, limit, beam, alpha, terms)
            assert ids_of(found[sentence]) == [ids for _, ids in expected]
            assert [h.score for h in found[sentence]] == pytest.approx([s for s, _ in expected], rel=1e-5)
            assert found[sentence]


def test_an_exhaustive_beam_finds_every_output_with_the_terms() -> None:
    model = RandomModel(2, eos=1.0)
    config = SearchConfig(beam=341, nbest=341, max_len_b=0)
    (found,) = search(model, *source(4), config, constraints=[Constraints(terms=(((A, B),), ((C,), (B, B))))])
    expected = [ids for _, ids in all_outputs(model, 0, 4, 0.6) if has(ids, ((A, B),)) and has(ids, ((C,), (B, B)))]
    assert ids_of(found) == expected


class TiedModel(PrefixModel):
    """Gives every token the same probability, whatever the sentence and the prefix."""

    def log_probs(self, sentence: int, prefix: Prefix) -> list[float]:
        return [-math.inf if token in (PAD, BOS) else -1.5 for token in range(self.size)]


def test_among_equal_scores_the_outputs_do_not_depend_on_the_other_terms_of_a_batch() -> None:
    own, other = Constraints(terms=(((A,),),)), Constraints(terms=(((B, C, A, C),), ((C, B),)))
    config = SearchConfig(beam=3, nbest=3, max_len_b=2)
    (alone,) = search(TiedModel(), *source(3), config, constraints=[own])
    beside, _ = search(TiedModel(), *source(3, 3), config, constraints=[own, other])
    assert beside == alone


def test_prefix_and_terms_can_be_combined() -> None:
    constraints = [Constraints(prefix=(C, A), terms=(((A, B),), ((C,),)))]
    config = SearchConfig(beam=2, nbest=2, max_len_b=0)
    (found,) = search(RandomModel(4, eos=2.0), *source(1), config, constraints=constraints)
    assert found
    assert all(ids[:2] == (C, A) and has(ids, ((A, B),)) for ids in ids_of(found))


def test_the_search_stops_when_no_further_output_with_the_terms_can_rank() -> None:
    model = RandomModel(3, eos=3.0)
    config = SearchConfig(beam=1, length_penalty=3.0, max_len_b=8)
    (found,) = search(model, *source(4), config, constraints=[Constraints(terms=(((A,),),))])
    assert model.steps <= len(found[0].ids) + 2 < 13  # one step with EOS, one that finds no place


def test_terms_forbidden_by_rules_give_no_output() -> None:
    constraints = [Constraints(terms=(((A,),),)), Constraints()]
    found = search(RandomModel(4), *source(2, 2), SearchConfig(), constraints=constraints, banned=[(A,)])
    assert [bool(nbest) for nbest in found] == [False, True]


def test_terms_are_refused_with_sampling_or_diverse_groups() -> None:
    for other in (SearchConfig(sampling=True), SearchConfig(diverse_groups=2)):
        with pytest.raises(UserError, match="terms"):
            search(RandomModel(4), *source(2), other, constraints=[Constraints(terms=(((A,),),))])
