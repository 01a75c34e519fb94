"""Datasets in shards: their layout, and runs that are killed and resumed."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.encoded import EncodedBlock
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.preprocessing.progress import SavedProgress
from nmtkit.preprocessing.split_writer import SplitWriter
from nmtkit.text import reading as text

WORDS = ["the", "a", "small", "big", "dog", "cat", "house", "street", "runs", "sleeps", "sees", "over", "under"]


class Killed(BaseException):
    """Ends a run as a kill would."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 1000)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A text of two corpora in which pairs are empty, repeated, too long or in the test set."""
    draw = np.random.default_rng(1)
    for name, count in (("one", 150), ("two", 90), ("test", 20)):
        for language in ("en", "de"):
            lines = [" ".join(draw.choice(WORDS, draw.integers(0, 9))) for _ in range(count)]
            lines[9::10] = [lines[0]] * len(lines[9::10])
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in ["dog", *lines]))
    return str(tmp_path)


def config(prefix: str, name: str, size: str | None, **more: Any) -> FilesConfig:
    train = (f"{prefix}/one", f"{prefix}/two")
    return FilesConfig(
        "en", "de", train, testpref=(f"{prefix}/test",), destdir=Path(prefix, name), shard_size=size, **more
    )


def make(prefix: str, name: str, size: str | None, cleaning: CleaningConfig | None = None, **more: Any) -> Dataset:
    return preprocess(config(prefix, name, size, **more), VocabularyConfig("space"), cleaning or CleaningConfig())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The layout


@pytest.mark.parametrize("size", ["100", "1K", "1G"])
def test_shards_of_any_size_hold_the_same_sentences_in_files_that_are_not_larger(prefix: str, size: str) -> None:
    one, many = make(prefix, "one_file", None), make(prefix, "shards", size)
    limit = config(prefix, "", size).shard_bytes
    assert limit is not None
    sizes = [path.stat().st_size for path in many.folder.iterdir() if path.suffix in (".bin", ".idx")]
    assert max(sizes) <= limit
    for name in ("train", "test"):
        ours, theirs = many.split(name), one.split(name)
        every = np.random.default_rng(1).permutation(len(ours))
        for side, other in ((ours.source, theirs.source), (ours.target, theirs.target)):
            assert side.gather(every)[0].tolist() == other.gather(every)[0].tolist()
            assert side.lengths[:].tolist() == other.lengths[:].tolist()
    assert (many.folder / "train.dropped").read_bytes() == (one.folder / "train.dropped").read_bytes()
    summaries = many.summaries["train"]
    assert sum(shard.sentences for shard in summaries.shards) == one.summaries["train"].sentences
    assert (len(summaries.shards) > 1) == (size != "1G")


@pytest.mark.parametrize("size", ["16", "50"])
def test_a_size_below_that_of_a_sentence_is_refused(prefix: str, size: str) -> None:
    Path(prefix, "two.en").write_text(Path(prefix, "two.en").read_text().replace("cat", "cat " * 30, 1))
    with pytest.raises(UserError, match=rf"--shard-size {size}: a sentence pair does not fit: give a larger size"):
        make(prefix, "shards", size)
    assert not Path(prefix, "shards").exists()


@pytest.mark.parametrize("size", ["", "0", "1.5G", "4GB"])
def test_an_invalid_size_is_refused(prefix: str, size: str) -> None:
    with pytest.raises(UserError, match=r"--shard-size .* is not a size"):
        config(prefix, "shards", size)


def test_sizes_have_binary_suffixes(prefix: str) -> None:
    sizes = {size: config(prefix, "shards", size).shard_bytes for size in (None, "7", "2k", "3M", "4G", "5T")}
    assert list(sizes.values()) == [None, 7, 2 << 10, 3 << 20, 4 << 30, 5 << 40]


# Runs that are killed

CLEANING = {
    "no filter": CleaningConfig(),
    "dedup": CleaningConfig(dedup="pair", max_length=7),
    "filters": CleaningConfig(drop_identical=True, target_script=("Latin",), dedup="source", dedup_normalized=True),
}


def kill_after_three_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a run when it has written three blocks, which complete at least one shard."""
    counter, original = itertools.count(), SplitWriter.write

    def write(self: SplitWriter, block: EncodedBlock) -> None:
        if next(counter) == 3:
            raise Killed
        original(self, block)

    monkeypatch.setattr(SplitWriter, "write", write)


@pytest.mark.parametrize("name", CLEANING)
def test_a_run_killed_repeatedly_makes_the_dataset_of_an_uninterrupted_one(
    prefix: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning = dataclasses.replace(CLEANING[name], exclude_overlap=(Path(prefix, "test.en"),))
    expected = contents(make(prefix, "straight", "300", cleaning, report=Path(prefix, "straight.html")).folder)
    kills = 0
    while not Path(prefix, "killed").exists():
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kill_after_three_blocks(patch)
            make(prefix, "killed", "300", cleaning, report=Path(prefix, "killed.html"))
        kills += 1
    assert kills > 2
    assert contents(Path(prefix, "killed")) == expected
    pages = [Path(prefix, f"{run}.html").read_text().replace(f"/{run}", "") for run in ("killed", "straight")]
    assert pages[0] == pages[1]
    assert not [*Path(prefix).glob(".killed.*")]


def kill_at_save(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a run when it is about to save its progress for the given time, counted from 0."""
    counter, original = itertools.count(), SavedProgress.save

    def save(self: SavedProgress, folder: Path) -> None:
        if next(counter) == number:
            raise Killed
        original(self, folder)

    monkeypatch.setattr(SavedProgress, "save", save)


def make_unfinished(prefix: str, monkeypatch: pytest.MonkeyPatch, cleaning: CleaningConfig | None = None) -> Path:
    """Kill a run, and return the folder that it left, with five shards."""
    with monkeypatch.context() as patch:
        kill_at_save(6, patch)
        with pytest.raises(Killed):
            make(prefix, "killed", "300", cleaning)
    (folder,) = Path(prefix).glob(".killed.*.partial")
    return folder


@pytest.fixture
def unfinished(prefix: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_unfinished(prefix, monkeypatch)


def test_complete_shards_are_not_encoded_again(prefix: str, unfinished: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = unfinished / "train.00000.en.bin"
    identity = first.stat().st_ino, first.stat().st_mtime_ns
    with caplog.at_level("INFO"):
        make(prefix, "killed", "300")
    assert "resuming after 5 shards of train" in caplog.messages
    kept = Path(prefix, "killed", first.name).stat()
    assert (kept.st_ino, kept.st_mtime_ns) == identity


@pytest.mark.parametrize("change", ["text", "options", "size"])
def test_a_run_on_other_text_or_with_other_options_starts_over_and_says_so(
    prefix: str, unfinished: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    cleaning = CleaningConfig()
    size: str | None = "300"
    if change == "text":
        Path(prefix, "two.en").write_text(Path(prefix, "two.en").read_text().replace("dog", "cat"))
    elif change == "options":
        cleaning = CleaningConfig(max_length=6)
    else:
        size = None
    made = contents(make(prefix, "killed", size, cleaning).folder)
    assert [message for message in caplog.messages if "starting over" in message] == [
        "starting over: the unfinished dataset has different text, options or versions"
    ]
    assert made == contents(make(prefix, "straight", size, cleaning).folder)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "train.00001.en.bin": lambda folder: (folder / "train.00001.en.bin").unlink(),
    "train.00002.en.bin": lambda folder: os.truncate(folder / "train.00002.en.bin", 10),
    "train.00002.de.idx": lambda folder: flip(folder / "train.00002.de.idx", 40),
    "marks": lambda folder: flip(folder / "marks", -1),
    "vocab.txt": lambda folder: os.truncate(folder / "vocab.txt", 10),
    "progress.json": lambda folder: os.truncate(folder / "progress.json", 100),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_starts_over_if_a_file_of_the_unfinished_dataset_is_damaged(
    prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cleaning = CLEANING["dedup"]
    DAMAGES[damage](make_unfinished(prefix, monkeypatch, cleaning))
    made = contents(make(prefix, "killed", "300", cleaning).folder)
    assert [message for message in caplog.messages if "starting over" in message] == [
        f"starting over: the unfinished dataset is damaged ({damage})"
    ]
    assert made == contents(make(prefix, "straight", "300", cleaning).folder)


def test_a_resumed_run_removes_everything_written_after_the_last_save(
    prefix: str, unfinished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (unfinished / "train.00077.en.bin").write_bytes(b"shard")
    (unfinished / "test.dropped").write_bytes(b"lines")
    for name in ("train.dropped", "train.00001.en.bin"):
        with (unfinished / name).open("ab") as file:
            file.write(b"more")
    with caplog.at_level("INFO"):
        made = contents(make(prefix, "killed", "300").folder)
    assert "resuming after 5 shards of train" in caplog.messages
    assert made == contents(make(prefix, "straight", "300").folder)
