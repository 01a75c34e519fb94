"""The dataset folder: what a reader finds in it, and what it refuses."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.data import corpus
from nmtkit.data.corpus import Dataset
from nmtkit.data.description import may_replace
from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.text.vocabulary import EOS

PAIRS = [("a b", "x y z"), ("", "x"), ("b", "z")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of segmented text with separate vocabularies."""
    folder = tmp_path_factory.mktemp("finished")
    for language, side in (("en", 0), ("de", 1)):
        (folder / f"text.{language}").write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    text = str(folder / "text")
    files = FilesConfig("en", "de", trainpref=(text,), testpref=(text,), destdir=folder / "dataset")
    return preprocess(files, VocabularyConfig(tokenizer="space", joined_vocab=False), CleaningConfig()).folder


@pytest.fixture
def dataset(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "dataset"))


def test_a_dataset_returns_its_sentences(finished: Path) -> None:
    dataset = Dataset.open(finished)
    assert (dataset.source_language, dataset.target_language, dataset.joined) == ("en", "de", False)
    assert dataset.split_names == ["train", "test"]
    train, test = dataset.split("train"), dataset.split("test")
    assert (len(train), len(test)) == (2, 3)
    for number, (source, target) in enumerate(PAIRS):
        assert test.source[number].tolist() == [*dataset.source.vocab.to_ids(source.split()), EOS]
        assert dataset.target.decode(test.target[number][:-1].tolist()) == target
    assert train.source.lengths[:].tolist() == [3, 2]
    assert train.target.lengths[:].tolist() == [4, 2]


def test_the_error_for_a_missing_split_lists_the_existing_ones(finished: Path) -> None:
    with pytest.raises(UserError, match="has no split 'valid', only train, test"):
        Dataset.open(finished).split("valid")


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dataset_has_the_documented_files(finished: Path) -> None:
    sides = [f"{split}.{language}" for split in ("train", "test") for language in ("en", "de")]
    expected = [f"{side}.{kind}" for side in sides for kind in ("bin", "idx")]
    assert file_names(finished) == sorted(["dataset.json", "vocab.en.txt", "vocab.de.txt", "train.dropped", *expected])


def test_a_changed_truncated_or_missing_file_is_named(dataset: Path) -> None:
    for name in file_names(dataset):
        path = dataset / name
        content = path.read_bytes()
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        for wrong in (changed, content[:-2], content + b"\0", b""):
            path.write_bytes(wrong)
            with pytest.raises(UserError, match=rf"{name}.*; run nmt-preprocess again"):
                Dataset.open(dataset)
        path.unlink()
        with pytest.raises(UserError, match=rf"{name}.*nmt-preprocess"):
            Dataset.open(dataset)
        path.write_bytes(content)
    Dataset.open(dataset)


def replace(folder: Path, other: Path) -> None:
    """Put a dataset in the place of another one, which is removed, as preprocessing does."""
    folder.rename(folder.with_name("old"))
    other.rename(folder)
    shutil.rmtree(folder.with_name("old"))


def preprocess_reversed(folder: Path) -> Path:
    """A dataset of the same text with its target words in reverse order: all its files have the same sizes."""
    folder.mkdir()
    for side, language in enumerate(("en", "de")):
        lines = (pair[side].split()[:: -1 if side else 1] for pair in PAIRS)
        (folder / f"text.{language}").write_text("".join(f"{' '.join(words)}\n" for words in lines))
    text = str(folder / "text")
    files = FilesConfig("en", "de", trainpref=(text,), testpref=(text,), destdir=folder / "dataset")
    return preprocess(files, VocabularyConfig(tokenizer="space", joined_vocab=False), CleaningConfig()).folder


def test_an_open_split_is_still_read_after_its_dataset_was_replaced(dataset: Path, tmp_path: Path) -> None:
    def read() -> list[list[int]]:
        return [side[number].tolist() for side in (split.source, split.target) for number in range(len(split))]

    split = Dataset.open(dataset).split("test")
    expected = read()
    split = Dataset.open(dataset).split("test")  # nothing of it has been read
    replace(dataset, preprocess_reversed(tmp_path / "reversed"))
    assert read() == expected
    split = Dataset.open(dataset).split("test")
    assert read() != expected


def test_a_split_of_a_dataset_that_was_replaced_is_refused(dataset: Path, tmp_path: Path) -> None:
    opened = Dataset.open(dataset)
    replace(dataset, preprocess_reversed(tmp_path / "reversed"))
    with pytest.raises(UserError, match=r"dataset: a different dataset has replaced it .*; run the command again"):
        opened.split("test")


def test_a_large_dataset_is_verified_on_request_only(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "ALWAYS_VERIFY_BELOW", 0)
    path = dataset / "train.en.bin"
    path.write_bytes(bytes(path.stat().st_size))
    Dataset.open(dataset)
    with pytest.raises(UserError, match=r"train\.en\.bin is damaged: its checksum does not match"):
        Dataset.open(dataset, verify=True)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.en\.bin has 0 bytes instead of 10"):
        Dataset.open(dataset)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change dataset.json and give it the checksum that docs/reference/dataset.md prescribes."""
    path = folder / "dataset.json"
    description = json.loads(path.read_text())
    change(description)
    del description["sha256"]
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    description["sha256"] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    path.write_text(json.dumps(description))


def test_a_newer_version_is_refused(dataset: Path) -> None:
    rewrite(dataset, lambda description: description.update(version=4))
    with pytest.raises(
        UserError, match=r"dataset\.json has format version 4, .* reads versions 2 and 3; run nmt-preprocess again"
    ):
        Dataset.open(dataset)


@pytest.mark.parametrize(
    ("key", "value"),
    [("source_language", "../en"), ("tokenizer", "bpe"), ("splits", [{"name": "train"}]), ("splits", None)],
)
def test_a_description_with_a_wrong_value_is_refused(dataset: Path, key: str, value: object) -> None:
    rewrite(dataset, lambda description: description.update({key: value}))
    with pytest.raises(UserError, match=r"dataset\.json is damaged .*; run nmt-preprocess again"):
        Dataset.open(dataset)


def test_a_split_outside_the_folder_is_refused(dataset: Path) -> None:
    rewrite(dataset, lambda description: description["splits"][0].update(name="../train"))
    with pytest.raises(UserError, match=r"'\.\./train' is not the name of a split"):
        Dataset.open(dataset)


@pytest.mark.parametrize("name", ["vocab.de.txt", "train.en.bin", "test.de.idx"])
def test_every_file_of_a_dataset_must_be_listed(name: str, dataset: Path) -> None:
    rewrite(dataset, lambda description: description["files"].pop(name))
    with pytest.raises(UserError, match=f"lists no file {name}"):
        Dataset.open(dataset)


def test_counts_that_do_not_fit_the_files_are_refused(dataset: Path) -> None:
    rewrite(dataset, lambda description: description["splits"][0].update(sentences=3))
    with pytest.raises(
        UserError, match=r"dataset\.json: the numbers of sentences and tokens of train\.en do not match its files"
    ):
        Dataset.open(dataset).split("train")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/vocab.en.txt", "notes.txt", "valid.en.bin"])
def test_a_description_that_lists_a_foreign_file_is_refused(dataset: Path, name: str) -> None:
    (dataset.parent / "outside").write_bytes(b"abc")
    facts = {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    rewrite(dataset, lambda description: description["files"].update({name: facts}))
    with pytest.raises(UserError, match=re.escape(f"{name!r} is not a file of this dataset")):
        Dataset.open(dataset)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "something else"}', "{"])
def test_a_file_that_is_not_a_dataset_description_is_refused(dataset: Path, content: str) -> None:
    (dataset / "dataset.json").write_text(content)
    with pytest.raises(UserError, match=r"dataset\.json .*run nmt-preprocess again"):
        Dataset.open(dataset)


def test_a_folder_that_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a dataset .dataset\.json: No such file or directory.: make one"):
        Dataset.open(tmp_path)


def test_a_description_that_is_a_pipe_is_refused_without_blocking(dataset: Path) -> None:
    (dataset / "dataset.json").unlink()
    os.mkfifo(dataset / "dataset.json")
    with pytest.raises(UserError, match=r"dataset\.json is not a file"):
        Dataset.open(dataset)


def test_sentences_too_long_for_max_tokens_are_refused_with_the_length_of_the_longest(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_PAIRS_PER_READ", 1)
    train = Dataset.open(dataset).split("train")
    train.check_lengths("--max-tokens", 4, "stay")
    with pytest.raises(UserError, match=r"--max-tokens 3 is .* split 'train', .* 4 tokens: give at least 4, or stay"):
        train.check_lengths("--max-tokens", 3, "stay")


@pytest.mark.parametrize("cut", [0, 100])
def test_only_a_dataset_may_be_replaced_also_a_damaged_one(cut: int, dataset: Path, tmp_path: Path) -> None:
    description = dataset / "dataset.json"
    os.truncate(description, description.stat().st_size - cut)
    assert may_replace(dataset)
    (dataset / "spm.mine.model").touch()  # named like a file of a dataset, but not listed
    assert may_replace(dataset) == (cut > 0)
    (dataset / "checkpoint_last.pt").touch()
    assert not may_replace(dataset)
    assert not may_replace(tmp_path)
