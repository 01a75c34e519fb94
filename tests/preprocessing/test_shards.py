"""Datasets in shards: their layout, and runs that are killed and resumed."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE
from repository import BIN

from nmtkit.data import description
from nmtkit.data.corpus import Dataset
from nmtkit.data.description import write_description
from nmtkit.errors import RunError, UserError
from nmtkit.preprocessing import pipeline, progress
from nmtkit.preprocessing.config import CleaningConfig, FilesConfig, VocabularyConfig
from nmtkit.preprocessing.encoded import EncodedBlock
from nmtkit.preprocessing.pipeline import preprocess
from nmtkit.preprocessing.split_writer import SplitWriter
from nmtkit.storage.files import sha256
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


@pytest.mark.parametrize("size", ["100", "333", "1K", "1G"])
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
        assert [ours.lines.locate(n) for n in range(len(ours))] == [theirs.lines.locate(n) for n in range(len(ours))]
    summaries = many.summaries["train"]
    assert sum(shard.sentences for shard in summaries.shards) == one.summaries["train"].sentences
    assert (len(summaries.shards) > 1) == (size != "1G")


def test_a_shard_is_as_full_as_its_largest_file_allows(prefix: str) -> None:
    dataset = make(prefix, "shards", "200")
    shards = dataset.split("train").source.shards, dataset.split("train").target.shards
    for number in range(len(shards[0]) - 1):
        tokens = [side[number].tokens + len(side[number + 1][0]) for side in shards]
        assert max(2 * max(tokens), 32 + 8 * (len(shards[0][number]) + 2)) > 200


def test_without_the_option_the_format_is_unchanged(prefix: str) -> None:
    dataset = make(prefix, "one_file", None)
    description = json.loads((dataset.folder / "dataset.json").read_text())
    assert description["version"] == 2
    assert all("shards" not in split for split in description["splits"])
    assert {"train.en.bin", "train.en.idx", "test.de.bin"} <= contents(dataset.folder).keys()


@pytest.mark.parametrize("size", ["16", "50"])
def test_a_size_below_that_of_a_sentence_is_refused(prefix: str, size: str) -> None:
    Path(prefix, "two.en").write_text(Path(prefix, "two.en").read_text().replace("cat", "cat " * 30, 1))
    with pytest.raises(UserError, match=rf"--shard-size {size}: a sentence pair needs \d+ bytes: give a larger size"):
        make(prefix, "shards", size)
    assert not Path(prefix, "shards").exists()


@pytest.mark.parametrize("size", ["", "0", "K", "-1", "1.5G", "4GB", "1 G", "١"])
def test_an_invalid_size_is_refused(prefix: str, size: str) -> None:
    with pytest.raises(UserError, match=r"--shard-size .*: not a size"):
        config(prefix, "shards", size)


@pytest.mark.parametrize("size", ["1048577T", "99999999T", f"{10**18 - 1}K"])
def test_a_size_above_an_exbibyte_is_refused(prefix: str, size: str) -> None:
    with pytest.raises(UserError, match=rf"--shard-size {size}: too large: give at most 1048576T"):
        config(prefix, "shards", size)
    assert config(prefix, "shards", "1048576T").shard_bytes == 1 << 60


def test_sizes_have_binary_suffixes(prefix: str) -> None:
    sizes = {size: config(prefix, "shards", size).shard_bytes for size in (None, "7", "2k", "3M", "4G", "5T")}
    assert list(sizes.values()) == [None, 7, 2 << 10, 3 << 20, 4 << 30, 5 << 40]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change dataset.json, and correct its checksum."""
    path = folder / "dataset.json"
    description = json.loads(path.read_text())
    change(description)
    del description["sha256"]
    compact = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    path.write_text(json.dumps(description | {"sha256": hashlib.sha256(compact.encode()).hexdigest()}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda train: train["shards"].pop(), "do not add up"),
        (lambda train: train["shards"].reverse(), "differ from those stored in train.00000.en"),
        (lambda train: train["shards"].append({"sentences": 0, "tokens": {"en": 0, "de": 0}}), "no sentences"),
        (lambda train: train["shards"][0].update(sentences=-1), "not a count"),
        (lambda train: train.update(shards=[]), "do not add up"),
        (lambda train: train.pop("shards"), "damaged"),
        (lambda train: train["shards"].__setitem__(0, None), "damaged"),
    ],
)
def test_a_description_with_wrong_shards_is_refused(
    prefix: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    folder = make(prefix, "shards", "400").folder
    rewrite(folder, lambda description: change(description["splits"][0]))
    with pytest.raises(UserError, match=message):
        Dataset.open(folder).split("train")


def test_a_missing_truncated_or_foreign_shard_is_refused(prefix: str) -> None:
    folder = make(prefix, "shards", "400").folder
    victim, other = folder / "train.00001.en.bin", folder / "train.00000.en.bin"
    content = victim.read_bytes()
    for damage, message in ((content[:-2], "bytes instead of"), (other.read_bytes()[: len(content)], None)):
        victim.write_bytes(damage.ljust(len(content) if message is None else 0, b"\4"))
        with pytest.raises(UserError, match=rf"train\.00001\.en\.bin.*{message or 'checksum'}"):
            Dataset.open(folder)
    victim.unlink()
    with pytest.raises(UserError, match=r"train\.00001\.en\.bin is missing"):
        Dataset.open(folder)


# Runs that are killed

CLEANING = {
    "no filter": CleaningConfig(),
    "dedup": CleaningConfig(dedup="pair", max_length=7),
    "filters": CleaningConfig(drop_identical=True, max_repeats=2, dedup="source", dedup_normalized=True),
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
    counter = itertools.count()

    def fsync_entries(folder: Path) -> None:
        if next(counter) == number:
            raise Killed

    monkeypatch.setattr(progress, "fsync_entries", fsync_entries)


@pytest.mark.parametrize("save", [0, 1, 6])
def test_a_run_on_compressed_text_killed_within_a_block_makes_the_same_dataset_with_other_workers(
    prefix: str, save: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in list(Path(prefix).iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    expected = contents(make(prefix, "straight", "300").folder)
    with monkeypatch.context() as patch:
        kill_at_save(save, patch)
        with pytest.raises(Killed):
            make(prefix, "killed", "300")
    assert contents(make(prefix, "killed", "300", workers=2).folder) == expected


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


@pytest.mark.parametrize("change", ["text", "options", "size", "text with its old time"])
def test_a_run_on_other_text_or_with_other_options_starts_over_and_says_so(
    prefix: str, unfinished: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    cleaning = CleaningConfig()
    size: str | None = "300"
    if change == "text":
        Path(prefix, "two.en").write_text(Path(prefix, "two.en").read_text().replace("dog", "cat"))
    elif change == "options":
        cleaning = CleaningConfig(max_length=6)
    elif change == "size":
        size = None
    else:
        text_file, status = Path(prefix, "two.en"), Path(prefix, "two.en").stat()
        text_file.write_text(text_file.read_text().replace("dog", "cat"))
        os.utime(text_file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert text_file.stat().st_mtime_ns == status.st_mtime_ns
    made = contents(make(prefix, "killed", size, cleaning).folder)
    assert [message for message in caplog.messages if "starting over" in message] == [
        "starting over: the unfinished dataset is of other text, options or versions"
    ]
    assert made == contents(make(prefix, "straight", size, cleaning).folder)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "train.00001.en.bin is missing": lambda folder: (folder / "train.00001.en.bin").unlink(),
    "train.00001.en.bin has changed": lambda folder: os.truncate(folder / "train.00001.en.bin", 10),
    "train.00002.de.idx has changed": lambda folder: flip(folder / "train.00002.de.idx", 40),
    "train.00000.de.bin has changed": lambda folder: swap(*(folder / f"train.0000{n}.de.bin" for n in range(2))),
    "train.dropped has changed": lambda folder: flip(folder / "train.dropped", 0),
    "marks has changed": lambda folder: flip(folder / "marks", -1),
    "marks is missing": lambda folder: (folder / "marks").unlink(),
    "vocab.txt has changed": lambda folder: os.truncate(folder / "vocab.txt", 10),
    "progress.json": lambda folder: (folder / "progress.json").write_text("[" * 100_000),
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


def test_an_unfinished_dataset_that_cannot_be_read_now_stays_as_it_is(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = make_unfinished(prefix, monkeypatch)
    before = contents(unfinished)
    read_bytes = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.name == "progress.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        with pytest.raises(RunError, match=r"progress\.json \(Input/output error\)"):
            make(prefix, "killed", "300")
    assert contents(unfinished) == before


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


def test_the_description_reuses_the_checksums_of_complete_shards(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def watched(path: Path, size: int) -> str:
        hashed.append(path.name)
        return sha256(path, size)

    monkeypatch.setattr(description, "sha256", watched)
    made = make(prefix, "shards", "300")
    shards = [path.name for path in made.folder.iterdir() if path.suffix in (".bin", ".idx")]
    assert [hashed.count(name) for name in shards] == [1] * len(shards)


def test_an_earlier_dataset_is_not_replaced_by_one_with_a_truncated_shard(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = contents(make(prefix, "data", "300").folder)

    def write_and_truncate(folder: Path, *arguments: Any) -> None:
        write_description(folder, *arguments)
        os.truncate(folder / "train.00000.en.bin", 10)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_description", write_and_truncate)
        with pytest.raises(RunError, match=r"train\.00000\.en\.bin"):
            make(prefix, "data", "400")
    assert contents(Path(prefix, "data")) == earlier
    assert contents(make(prefix, "data", "400").folder) == contents(make(prefix, "straight", "400").folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_resumes_after_a_signal(prefix: str, number: signal.Signals) -> None:
    for name in ("one.en", "one.de"):
        Path(prefix, name).write_text(Path(prefix, name).read_text() * 200)
    command = [sys.executable, str(BIN / "nmt-preprocess"), "-s", "en", "-t", "de", "--trainpref", f"{prefix}/one"]
    command += ["--tokenizer", "space", "--shard-size", "20K", "--workers", "2", "--destdir"]
    subprocess.run([*command, f"{prefix}/straight"], check=True, timeout=PATIENCE, capture_output=True)
    process = subprocess.Popen([*command, f"{prefix}/killed"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not [*Path(prefix).glob(".killed.*.partial/train.00001.en.bin")]:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert not Path(prefix, "killed").exists()
    done = subprocess.run([*command, f"{prefix}/killed"], check=True, timeout=PATIENCE, capture_output=True)
    assert b"resuming after" in done.stderr
    assert contents(Path(prefix, "killed")) == contents(Path(prefix, "straight"))
