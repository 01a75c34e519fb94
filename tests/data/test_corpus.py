"""The dataset folder: what a reader finds in it, and what it refuses."""

import hashlib
import json
import os
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


@pytest.mark.parametrize("content", ["", "[]", '{"format": "something else"}', "{"])
def test_a_file_that_is_not_a_dataset_description_is_refused(dataset: Path, content: str) -> None:
    (dataset / "dataset.json").write_text(content)
    with pytest.raises(UserError, match=r"dataset\.json .*run nmt-preprocess again"):
        Dataset.open(dataset)


def test_a_folder_that_is_not_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a dataset .dataset\.json: No such file or directory.: make one"):
        Dataset.open(tmp_path)


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
