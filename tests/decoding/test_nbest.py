"""N-best lists hold different texts, however many segmentations spell each of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
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
    score,
    source,
)

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.requests import Request
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import search
from nmtkit.decoding.translation import Candidate, different_texts
from nmtkit.decoding.translator import Translator
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

SPELLED = {UNK: "?", A: "a", B: "b", C: "ab"}


def spell(ids: Sequence[int]) -> str:
    """C spells what A and B spell together."""
    return "".join(SPELLED[token] for token in ids)


def best_of_each_text(outputs: Sequence[tuple[float, Prefix]]) -> list[tuple[float, Prefix]]:
    """The best output of each text, best first."""
    best: dict[str, tuple[float, Prefix]] = {}
    for output in sorted(outputs, reverse=True):
        best.setdefault(spell(output[1]), output)
    return list(best.values())


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.5])
@pytest.mark.parametrize("nbest", [2, 7, 85])
def test_an_exhaustive_beam_finds_the_n_best_texts_of_all_outputs(nbest: int, alpha: float) -> None:
    model, limits = RandomModel(seed=1, eos=-1.0), (3, 2, 1, 0)
    config = SearchConfig(beam=85, nbest=nbest, length_penalty=alpha, max_len_b=0)
    for sentence, found in enumerate(search(model, *source(*limits), config, text_of=spell)):
        expected = best_of_each_text(all_outputs(model, sentence, limits[sentence], alpha))[:nbest]
        assert ids_of(found) == [ids for _, ids in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([s for s, _ in expected], rel=1e-5)


def plain_search(
    model: PrefixModel, sentence: int, limit: int, groups: int, width: int, strength: float, alpha: float
) -> list[tuple[float, Prefix]]:
    """Group after group; an end whose text is finished is noted, but the next candidate has its place. Never stops
    before no place is open."""
    beams: list[list[tuple[float, Prefix]]] = [[(0.0, ())] for _ in range(groups)]
    places = [width] * groups
    finished: list[tuple[float, Prefix]] = []
    for length in range(limit + 1):
        taken: list[int] = []
        for group in range(groups):
            candidates = [
                (log_prob + step - strength * taken.count(token), log_prob + step, (*prefix, token))
                for log_prob, prefix in beams[group]
                for token, step in enumerate(model.log_probs(sentence, prefix))
                if token not in (PAD, BOS) and (token == EOS or length < limit)
            ]
            best: list[tuple[float, Prefix]] = []
            beams[group], still_open = best, places[group]
            for _, log_prob, prefix in sorted(candidates, reverse=True):
                if still_open == 0:
                    break
                if prefix[-1] == EOS:
                    known = {spell(ids) for _, ids in finished}
                    finished.append((score(model, sentence, prefix[:-1], alpha), prefix[:-1]))
                    if spell(prefix[:-1]) in known:
                        continue
                    places[group] -= 1
                else:
                    best.append((log_prob, prefix))
                taken.append(prefix[-1])
                still_open -= 1
    return best_of_each_text(finished)


@pytest.mark.parametrize(("groups", "width"), [(1, 2), (1, 5), (3, 2)])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_repeated_text_takes_no_place_in_the_nbest_list(groups: int, width: int, alpha: float) -> None:
    lengths, beam = (7, 4, 6, 1), groups * width
    for seed in range(12):
        model, nbest = RandomModel(seed, eos=1.0), 2 + seed % (beam - 1)
        config = SearchConfig(
            beam=beam, nbest=nbest, diverse_groups=groups, diversity=0.3, length_penalty=alpha, max_len_b=1
        )
        for sentence, found in enumerate(search(model, *source(*lengths), config, text_of=spell)):
            expected = plain_search(model, sentence, lengths[sentence] + 1, groups, width, 0.3, alpha)[:nbest]
            assert [h.score for h in found] == pytest.approx([s for s, _ in expected], rel=1e-5)
            assert ids_of(found) == [ids for _, ids in expected]


@pytest.mark.parametrize(("beam", "groups"), [(3, 1), (6, 3)])
def test_comparing_the_best_tokens_of_each_row_equals_comparing_all(beam: int, groups: int) -> None:
    """A rule, here one that no output breaks, makes the search compare all tokens."""
    for seed in range(30):
        config = SearchConfig(beam=beam, nbest=beam, diverse_groups=groups, diversity=0.3, max_len_b=1)
        found = search(RandomModel(seed, eos=1.0), *source(6, 3), config, text_of=spell)
        by_all = replace(config, no_repeat_ngram=20)
        assert found == search(RandomModel(seed, eos=1.0), *source(6, 3), by_all, text_of=spell)


def test_a_better_segmentation_of_a_finished_text_replaces_it() -> None:
    """Here the longer one, which ends later and has the better score by its length."""
    tree: dict[Prefix, dict[int, float]] = {
        (): {C: 0.5, A: 0.4, B: 0.1},
        (A,): {B: 1.0},
        (A, B): {EOS: 1.0},
    }
    for alpha, best in ((0.0, (C,)), (2.5, (A, B))):
        config = SearchConfig(beam=3, nbest=2, length_penalty=alpha)
        (found,) = search(ScriptedModel(tree), *source(3), config, text_of=spell)
        assert ids_of(found) == [best, (B,)]


def test_nbest_texts_are_distinct_with_required_terms() -> None:
    """The beam is as wide as the space: the list has the n best texts of all outputs that have the term."""
    model, config = RandomModel(2, eos=1.0), SearchConfig(beam=341, nbest=20, max_len_b=0)
    (found,) = search(model, *source(4), config, constraints=[Constraints(terms=(((B, A),),))], text_of=spell)
    having = [(s, ids) for s, ids in all_outputs(model, 0, 4, 0.6) if (B, A) in pairwise(ids)]
    assert ids_of(found) == [ids for _, ids in best_of_each_text(having)][:20]


# Through a real tokenizer ----------------------------------------------------------------------------------------

LINES = ["the dog runs on the street", "", "a cat", "die katze läuft über die straße", "der hund", "the cat runs"]
OPTIONS: list[dict[str, Any]] = [
    {"beam": 4, "nbest": 4},
    {"beam": 6, "nbest": 6, "diverse_groups": 3},
    {"beam": 5, "nbest": 2, "length_penalty": 1.5, "no_repeat_ngram": 2},
]


def of_random_weights(make_checkpoint: Callable[..., Checkpoint], seed: int, **model: Any) -> Checkpoint:
    """Peaked enough for a text to come in several segmentations."""
    checkpoint = make_checkpoint(seed, **model)
    checkpoint.weights = {name: weight * 1.5 for name, weight in checkpoint.weights.items()}
    return checkpoint


@pytest.mark.parametrize("kind", ["compiled", "by torch", "an ensemble"])
@pytest.mark.parametrize("options", OPTIONS)
def test_nbest_texts_are_distinct_with_every_search_backend(
    kind: str, options: dict[str, Any], make_checkpoint: Callable[..., Checkpoint]
) -> None:
    window = {"attention_window": 3} if kind == "by torch" else {}
    seeds = (1, 2) if kind == "an ensemble" else (1,)
    checkpoints = [of_random_weights(make_checkpoint, seed, **window) for seed in seeds]
    translator = Translator.of(checkpoints, EngineConfig(device="cpu", precision="fp32"))
    lines = [line if number % 3 else Request(line, prefix="die") for number, line in enumerate(LINES * 4)]
    for texts in translator.translate(lines, max_len_b=8, **options):
        assert len(texts) == len(set(texts))


def test_the_best_candidate_of_each_text_is_kept() -> None:
    best, second, repeated = (Candidate(text, score) for text, score in (("x", -1.0), ("y", -2.0), ("x", -3.0)))
    assert different_texts([best, second, repeated]) == (best, second)


def test_nbest_texts_of_split_lines_are_distinct(make_checkpoint: Callable[..., Checkpoint]) -> None:
    translator = Translator.of([of_random_weights(make_checkpoint, 1)], EngineConfig(device="cpu", precision="fp32"))
    batches = StreamConfig(max_source_tokens=4, overlong="split")
    for translation in translator.stream(LINES * 2, SearchConfig(nbest=4, max_len_b=8), batches):
        texts = [candidate.text for candidate in translation.candidates]
        assert len(texts) == len(set(texts))


def test_nbest_texts_are_distinct_after_copying_source_words(make_checkpoint: Callable[..., Checkpoint]) -> None:
    """`x` and an unknown word that is replaced by `x` are different hypotheses of one text."""
    checkpoint = make_checkpoint(3)
    pieces = [*SPECIALS, "x", *(f"w{n}" for n in range(len(checkpoint.source.vocab) - 5))]
    checkpoint.source = checkpoint.target = SpaceTokenizer(Vocabulary(pieces))
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    options: dict[str, Any] = {"max_len_a": 0.0, "max_len_b": 2, "ban": tuple(pieces[5:])}
    (texts,) = translator.translate(["x x"], nbest=4, copy_unknown=True, **options)
    assert sorted(texts) == ["", "x", "x x"]


def test_samples_can_repeat_a_text(make_checkpoint: Callable[..., Checkpoint]) -> None:
    translator = Translator.of([make_checkpoint()], EngineConfig(device="cpu", precision="fp32"))
    (texts,) = translator.translate(["a cat"], nbest=20, sampling=True, top_k=1, max_len_b=2)
    assert len(texts) == 20
    assert len(set(texts)) == 1
