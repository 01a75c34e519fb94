"""The saved progress of a run with --shard-size: every value is validated on reading."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmtkit.data.description import ShardSummary
from nmtkit.errors import RunError
from nmtkit.preprocessing import progress
from nmtkit.preprocessing.config import FilesConfig
from nmtkit.preprocessing.encoded import CorpusCounts, EncodedSplit, Example
from nmtkit.preprocessing.progress import SavedProgress
from nmtkit.preprocessing.reasons import REASONS
from nmtkit.storage.files import sha256_of_fields

FILES = FilesConfig("en", "de", ("one",), testpref=("test",), shard_size="1K")


@pytest.fixture
def saved(tmp_path: Path) -> SavedProgress:
    corpus = CorpusCounts("one", np.arange(1 + len(REASONS)), np.array([8, 9]), np.array([0, 1]))
    shards = [ShardSummary(3, {"en": 8, "de": 9})]
    saved = SavedProgress(
        "task", {"train": 20, "test": 5}, [EncodedSplit("train", [corpus], [Example(1, "a", "b")], shards)]
    )
    (tmp_path / "marks").write_bytes(b"marks")
    saved.save(tmp_path)
    return saved


def test_the_progress_that_is_loaded_is_the_one_that_was_saved(saved: SavedProgress, tmp_path: Path) -> None:
    loaded = SavedProgress.load(tmp_path, "task", FILES)
    assert loaded is not None
    assert loaded.files.keys() == {"marks"}
    assert [split.to_dict() for split in loaded.splits] == [split.to_dict() for split in saved.splits]
    assert (loaded.task, loaded.pairs, loaded.files) == (saved.task, saved.pairs, saved.files)


def test_a_save_flushes_only_new_and_longer_files_and_the_folder(
    saved: SavedProgress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    for name in ("fsync", "fsync_entries"):
        monkeypatch.setattr(progress, name, lambda path: flushed.append(path.name))
    (tmp_path / "shard").write_bytes(b"shard")
    saved.save(tmp_path)
    (tmp_path / "shard").write_bytes(b"shard and more")
    saved.save(tmp_path)
    saved.save(tmp_path)
    assert flushed == ["shard", tmp_path.name, "shard", tmp_path.name, tmp_path.name]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "pairs as a list": lambda fields: fields.update(pairs=[1]),
    "no pairs": lambda fields: fields.update(pairs={}),
    "a text as a count": lambda fields: fields["pairs"].update(train="x"),
    "a negative count": lambda fields: fields["pairs"].update(train=-1),
    "a bool as a count": lambda fields: fields["pairs"].update(train=True),
    "too large a count": lambda fields: fields["splits"][0]["corpora"][0].update(tokens=[1 << 63, 0]),
    "too few counts": lambda fields: fields["splits"][0]["corpora"][0]["marks"].pop(),
    "too many counts": lambda fields: fields["splits"][0]["corpora"][0]["unknown"].append(0),
    "another split": lambda fields: fields["splits"][0].update(name="valid"),
    "a split twice": lambda fields: fields["splits"].append(fields["splits"][0]),
    "a short example": lambda fields: fields["splits"][0]["examples"][0].pop(),
    "an empty shard": lambda fields: fields["splits"][0]["shards"][0].update(sentences=0),
    "a shard without a side": lambda fields: fields["splits"][0]["shards"][0]["tokens"].pop("de"),
    "a file without a checksum": lambda fields: fields["files"]["marks"].pop("sha256"),
    "files as a list": lambda fields: fields.update(files=["marks"]),
    "a task of another type": lambda fields: fields.update(task=None),
    "no splits": lambda fields: fields.pop("splits"),
}


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_value_is_refused_even_with_a_valid_checksum(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    path = tmp_path / "progress.json"
    fields = json.loads(path.read_text())
    CHANGES[change](fields)
    path.write_text(json.dumps(fields | {"sha256": sha256_of_fields(fields)}))
    assert SavedProgress.load(tmp_path, "task", FILES) is None
    assert caplog.messages == ["starting over: the unfinished dataset is damaged (progress.json)"]


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{}", "[" * 100_000, '{"a":' * 100_000, '{"task": 1, "task": 2}', "\xff", "1" * 5000]
)
def test_content_that_is_no_progress_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str) -> None:
    (tmp_path / "progress.json").write_text(content, encoding="latin-1")
    assert SavedProgress.load(tmp_path, "task", FILES) is None
    assert caplog.messages == ["starting over: the unfinished dataset is damaged (progress.json)"]


@pytest.mark.usefixtures("saved")
def test_progress_that_cannot_be_read_is_an_error_and_does_not_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(RunError, match=r"cannot read .*progress.json \(Too many open files\): run again"):
        SavedProgress.load(tmp_path, "task", FILES)
    assert not caplog.messages


@pytest.mark.usefixtures("saved")
def test_a_changed_value_without_a_new_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(path.read_text().replace('"train": 20', '"train": 21'))
    assert SavedProgress.load(tmp_path, "task", FILES) is None
