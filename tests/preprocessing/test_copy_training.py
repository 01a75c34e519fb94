"""Copy training: placeholder symbols in 7.5 % of the training pairs, in the vocabulary, and in the checkpoint."""

import random
import re
from pathlib import Path

import pytest

from nmtkit.data.corpus import Dataset
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.copy_training import with_placeholders
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text.user_symbols import PLACEHOLDERS

PAIRS = [(f"the dog {n} runs to {n + 7} houses", f"der hund {n} läuft zu {n + 7} häusern") for n in range(0, 4000, 2)]
PLAIN = [
    (f"a cat, {word}.", f"eine katze, {word[::-1]} .")
    for word in map(str, range(100_000, 102_000))
    if word != word[::-1]
]


def changed(pairs: list[tuple[str, str]], seed: int = 1) -> list[tuple[str, str]]:
    sides = with_placeholders(["".join(f"{pair[side]}\n" for pair in pairs).encode() for side in (0, 1)], seed)
    source, target = (side.decode().removesuffix("\n").split("\n") for side in sides)
    return list(zip(source, target, strict=True))


@pytest.mark.parametrize("pairs", [PAIRS, PLAIN])
def test_one_pair_in_thirteen_has_symbols_in_place_of_words_of_both_sides_or_else_between_clauses(
    pairs: list[tuple[str, str]],
) -> None:
    found = [(old, new) for old, new in zip(pairs, changed(pairs), strict=True) if old != new]
    assert 0.06 < len(found) / len(pairs) < 0.09
    for old, new in found:
        symbols = [sorted(re.findall("<ph.>", side)) for side in new]
        assert symbols[0] == symbols[1]
        assert len(set(symbols[0])) == len(symbols[0]) > 0
        if pairs is PAIRS:  # its only common words are numbers
            words = dict(zip(new[0].split(), old[0].split(), strict=True))
            assert all(words[symbol].isdigit() for symbol in symbols[0])
            assert tuple(" ".join(words.get(word, word) for word in side.split()) for side in new[:1]) == old[:1]
            assert [old[1].split()[n] for n, word in enumerate(new[1].split()) if word in words and word[0] == "<"] == [
                words[word] for word in new[1].split() if word[0] == "<"
            ]
        else:
            assert tuple(re.sub("^<ph.> | <ph.>", "", side) for side in new) == old
            before = [[side[: at.start()].count(",") for at in re.finditer("<ph.>", side)] for side in new]
            assert before[0] == before[1]


def test_the_symbols_of_a_pair_depend_on_the_pair_and_the_seed_alone() -> None:
    shuffled = random.Random(1).sample(PAIRS, len(PAIRS))
    assert sorted(changed(shuffled)) == sorted(changed(PAIRS))
    assert changed(PAIRS[:100]) + changed(PAIRS[100:]) == changed(PAIRS)
    assert changed(PAIRS, seed=2) != changed(PAIRS)


@pytest.mark.parametrize("tokenizer", ["sentencepiece", "space"])
def test_a_dataset_with_placeholders_has_them_in_its_vocabulary_and_training_split(
    tokenizer: str, tmp_path: Path
) -> None:
    for name, pairs in (("train", PAIRS), ("valid", PAIRS[:100])):
        for side, language in enumerate(("en", "de")):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))

    def make(name: str, workers: int, **options: object) -> Dataset:
        prefixes = {"trainpref": (str(tmp_path / "train"),), "validpref": (str(tmp_path / "valid"),)}
        files = FilesConfig("en", "de", **prefixes, destdir=tmp_path / name, workers=workers)  # type: ignore[arg-type]
        return preprocess(files, VocabularyConfig(placeholders=True, **options), CleaningConfig())  # type: ignore[arg-type]

    dataset = make("one", 1, tokenizer=tokenizer, vocab_size=300)
    ids = dataset.source.vocab.to_ids(PLACEHOLDERS)
    assert set(PLACEHOLDERS) <= set(dataset.source.symbols())
    train, valid = (dataset.split(name).source for name in ("train", "valid"))
    assert sum(bool(set(ids) & set(train[n].tolist())) for n in range(400)) > 15
    assert not any(set(ids) & set(valid[n].tolist()) for n in range(100))
    again = make("two", 2, vocab_from=tmp_path / "one").split("train").target
    assert all((again[n] == dataset.split("train").target[n]).all() for n in range(400))
