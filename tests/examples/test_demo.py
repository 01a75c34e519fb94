"""The demo's corpus: the grammar of Ravic, and the separation of training and test set."""

import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from make_corpus import LONGEST, SIZES, Noun, Sentence, SentenceGenerator, english, gloss, lexicon, make, ravic
from patience import PATIENCE
from repository import ROOT

SEE, SLEEP = ("see", "sees", "saw"), ("sleep", "sleeps", "slept")
GENERATOR = ROOT / "examples/demo/make_corpus.py"

Splits = dict[str, list[Sentence]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return make(SIZES)


def translation(sentence: Sentence) -> tuple[str, str]:
    return english(sentence), ravic(sentence)


def test_the_corpus_is_thousands_of_distinct_sentences(splits: Splits) -> None:
    texts = [english(sentence) for sentence in chain(*splits.values())]
    assert {name: len(sentences) for name, sentences in splits.items()} == SIZES
    assert len(set(texts)) == len(texts) == sum(SIZES.values())
    assert all(2 <= len(text.split()) <= LONGEST for text in texts)


def test_no_test_sentence_occurs_in_training_on_either_side(splits: Splits) -> None:
    for say in (english, ravic):
        trained = {say(sentence) for sentence in splits["train"]}
        assert not trained & {say(sentence) for sentence in splits["valid"] + splits["test"]}


def test_each_test_sentence_has_word_pairs_that_are_not_in_training(splits: Splits) -> None:
    adjectives = set(chain(*(sentence.adjective_noun_pairs() for sentence in splits["train"])))
    objects = set(chain(*(sentence.verb_object_pairs() for sentence in splits["train"])))
    for sentence in splits["test"]:
        assert sentence.adjective_noun_pairs() - adjectives
        assert sentence.verb_object_pairs() - objects


def test_more_than_95_percent_of_the_ravic_words_of_test_sentences_occur_in_training(splits: Splits) -> None:
    """The test set needs new combinations, not unknown words."""
    trained = {word for sentence in splits["train"] for word in ravic(sentence).strip("?.").split()}
    tested = [word for sentence in splits["test"] for word in ravic(sentence).strip("?.").split()]
    assert sum(word in trained for word in tested) > 0.95 * len(tested)


def test_equal_english_sentences_have_equal_translations() -> None:
    generator = SentenceGenerator(seed=2)
    translations: dict[str, str] = {}
    for sentence in (generator.sentence() for _ in range(20_000)):
        source, target = translation(sentence)
        assert translations.setdefault(source, target) == target


def test_the_object_precedes_the_verb_and_adjectives_agree_after_their_noun() -> None:
    sentence = Sentence(Noun("dog", "sg", "the", "old"), SEE, "past", object=Noun("house", "sg", "a", "red"))
    assert translation(sentence) == ("the old dog saw a red house.", "karvo veto doman ruban enan vidaleto.")


def test_questions_times_places_and_owners_move() -> None:
    owned = Noun("friend", "sg", adjective="young", owner=Noun("king", "sg", "my"))
    place = ("behind", Noun("tree", "pl", "these"))
    sentence = Sentence(owned, SLEEP, "present", place=place, time="every day", question=True)
    assert translation(sentence) == (
        "does my king's young friend sleep behind these trees every day?",
        "chu cadi rovos meros amo juno arbir silir retro dormet?",
    )


def test_articles_auxiliaries_plurals_and_possessives_are_correct_english() -> None:
    apple = Noun("apple", "sg", "a")
    assert english(Sentence("i", SEE, "present", object=apple)) == "i see an apple."
    assert english(Sentence("he", SEE, "present", object=apple, negated=True)) == "he does not see an apple."
    assert english(Sentence(Noun("wolf", "pl"), SLEEP, "present")) == "the wolves sleep."
    assert english(Sentence(Noun("cat", "sg", owner=Noun("boy", "pl")), SLEEP, "past")) == "the boys' cat slept."


def test_every_ravic_word_of_the_corpus_has_a_gloss(splits: Splits) -> None:
    forms = lexicon()
    words = {word for sentence in chain(*splits.values()) for word in ravic(sentence).strip("?.").split()}
    assert not words - set(forms)
    shown = gloss("fires temes toles nipu junu guvok tuvok planos alvos silos ma monsaletuko.", forms)
    assert shown == "of-birds dark those child young to-farmer your of-table white this not showed"
    assert gloss("hier karvon petonk vidalem?", forms) == "yesterday dog petonk i-saw"


def test_the_command_writes_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        subprocess.run([sys.executable, str(GENERATOR), str(tmp_path / name)], check=True, timeout=PATIENCE)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(f"{split}.{language}" for split in SIZES for language in ("en", "rv"))
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
