"""Augmentation: what each modifier does, and that a pair depends only on seed, epoch and its number."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from nmtkit.data.augmentation import DEFAULT, MODIFIERS, Pair, parse
from nmtkit.data.corpus import Dataset
from nmtkit.data.sampling import PairSampling
from nmtkit.errors import UserError

PAIR = Pair("The dog's owner sees two children.", "Der Besitzer sieht zwei Kinder.")
NEXT = Pair("A cat sleeps.", "Eine Katze schläft.")


@pytest.fixture(scope="module")
def dataset(datasets: dict[str, Path]) -> Dataset:
    return Dataset.open(datasets["joined"])


def modified(name: str, pair: Pair = PAIR, seed: int = 1) -> Pair:
    return MODIFIERS[name](pair, lambda: NEXT, Random(seed))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("upper", ("THE DOG'S OWNER SEES TWO CHILDREN.", "DER BESITZER SIEHT ZWEI KINDER.")),
        ("title", ("The Dog's Owner Sees Two Children.", "Der Besitzer Sieht Zwei Kinder.")),
        ("merge", (f"{PAIR.source} {NEXT.source}", f"{PAIR.target} {NEXT.target}")),
        ("remove-end-punct", (PAIR.source[:-1], PAIR.target[:-1])),
    ],
)
def test_a_modifier_changes_both_texts_alike(name: str, expected: tuple[str, str]) -> None:
    assert modified(name) == expected


def test_marks_other_than_those_of_sentences_and_parts_of_urls_stay() -> None:
    assert modified("remove-end-punct", Pair("Growth was 5%.", "Das Wachstum war 5%")) == (
        "Growth was 5%.",
        "Das Wachstum war 5%",
    )
    assert modified("title", Pair("see www.x.de/a.", "siehe a@b.de")) == ("See www.x.de/a.", "Siehe a@b.de")


def test_texts_without_spaces_are_merged_without_one() -> None:
    merged = MODIFIERS["merge"](Pair("犬です。", "It is a dog."), lambda: Pair("猫です。", "It is a cat."), Random(1))
    assert merged == ("犬です。猫です。", "It is a dog. It is a cat.")


def test_text_without_case_or_words_stays_as_it_is() -> None:
    pair = Pair("私は犬が好きです。", "12 € 50")
    assert modified("upper", pair) == modified("title", pair) == modified("typos", pair) == pair


def test_a_typo_changes_at_most_two_letters_of_the_source_but_no_first_letter() -> None:
    for seed in range(200):
        source, target = modified("typos", seed=seed)
        words = list(zip(source.split(), PAIR.source.split(), strict=True))
        assert target == PAIR.target
        assert sum(new != old for new, old in words) <= 1
        assert all(new[0] == old[0] and abs(len(new) - len(old)) <= 1 for new, old in words)


def test_noise_is_the_same_on_both_sides() -> None:
    for seed in range(20):
        added = [text.replace(stored, "") for text, stored in zip(modified("noise", seed=seed), PAIR, strict=True)]
        assert added[0] == added[1] != ""


@pytest.mark.parametrize("text", ["upper", "upper=2", "upper=x", "capitals=.1", "upper=.1;title=.1"])
def test_a_wrong_value_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"^--augment .*: give default, or probabilities of merge, "):
        parse(text)


def texts(dataset: Dataset, epoch: int, pairs: list[int], augmentation: str, longest: int = 1000) -> Iterator[Pair]:
    sampling = PairSampling(dataset, dataset.split("train"), 0.0, longest, 1, augmentation)
    sides = [np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in sampling.gather(epoch, np.array(pairs))]
    for source, target in zip(*sides, strict=True):
        assert max(len(source), len(target)) <= longest
        yield Pair(dataset.source.decode(source[:-1].tolist()), dataset.target.decode(target[:-1].tolist()))


def test_pairs_are_rewritten_at_their_rate_by_seed_epoch_and_number(dataset: Dataset) -> None:
    pairs = list(range(200))
    stored, first = list(texts(dataset, 1, pairs, "upper=0")), list(texts(dataset, 1, pairs, "title=.3"))
    assert list(texts(dataset, 1, pairs[7:], "title=.3")) == first[7:]
    assert list(texts(dataset, 2, pairs, "title=.3")) != first
    assert 40 < sum(now != before for now, before in zip(first, stored, strict=True)) < 80


def test_a_merged_pair_is_followed_by_the_next_of_the_corpus(dataset: Dataset) -> None:
    stored = list(texts(dataset, 1, [4, 5], "merge=0"))
    assert list(texts(dataset, 1, [4], "merge=1")) == [Pair(*(" ".join(side) for side in zip(*stored, strict=True)))]


def test_a_pair_with_a_side_that_would_become_too_long_stays_as_it_is(dataset: Dataset) -> None:
    split = dataset.split("train")
    longest = int(max(split.source.lengths[:51].max(), split.target.lengths[:51].max()))
    stored, merged = (list(texts(dataset, 1, list(range(51)), f"merge={rate}", longest)) for rate in (0, 1))
    together = [Pair(*map(" ".join, zip(*two, strict=True))) for two in pairwise(stored)]
    assert all(pair in (one, two) for pair, one, two in zip(merged, stored, together, strict=False))
    assert merged[:50] != stored[:50]
    assert merged[:50] != together


def test_segmented_text_is_refused(datasets: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="--augment needs raw text"):
        list(texts(Dataset.open(datasets["separate"]), 1, [0], DEFAULT))
