"""fetch_text.py: text of one origin, whatever was there before."""

import contextlib
import gzip
import os
import resource
import shutil
from pathlib import Path

import fetch_text
import pytest
from fetch_text import fetch

from nmtkit.errors import RunError, UserError

NAMES = ["train.de", "train.en"]
downloads = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def origin(folder: Path, words: str) -> str:
    """A folder with the text, each file with its own words."""
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"{name}: {words}\n")
    return str(folder)


@pytest.fixture
def first(tmp_path: Path) -> str:
    return origin(tmp_path / "first", "one")


@pytest.fixture
def second(tmp_path: Path) -> str:
    return origin(tmp_path / "second", "two")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "work/text"


def words(text: Path) -> list[str]:
    """What the files of the text contain, and nothing is left beside them."""
    assert {path.name for path in text.iterdir()} == {*NAMES, fetch_text.RECORD, fetch_text.LOCK}
    return [(text / name).read_text().removeprefix(f"{name}: ").strip() for name in NAMES]


def test_text_of_another_folder_replaces_that_of_the_first(first: str, second: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    fetch(text, NAMES, second, None)
    assert words(text) == ["two", "two"]


@pytest.mark.parametrize("content", ["other words", "{}: odd\n"])  # of another and of the same size
def test_text_that_has_changed_in_its_folder_is_refused(content: str, first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    Path(first, NAMES[1]).write_text(content.format(NAMES[1]))
    with pytest.raises(UserError, match=rf"{NAMES[1]} differs from its copy {text}/{NAMES[1]}: remove the copy"):
        fetch(text, NAMES, first, None)
    assert words(text) == ["one", "one"]


def test_text_that_has_changed_and_is_older_than_its_copy_is_refused(first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    changed = Path(first, NAMES[1])
    changed.write_text(f"{NAMES[1]}: odd\n")
    os.utime(changed, (0, 0))
    with pytest.raises(UserError, match=rf"{NAMES[1]} differs from its copy"):
        fetch(text, NAMES, first, None)


def test_text_whose_folder_is_gone_or_was_only_touched_is_kept(first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    Path(first, NAMES[0]).touch()
    Path(first, NAMES[1]).unlink()
    fetch(text, NAMES, first, None)
    assert words(text) == ["one", "one"]


def test_a_file_with_the_same_content_is_kept(first: str, second: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    shutil.copy(text / NAMES[0], Path(second) / NAMES[0])
    before = [(text / name).stat().st_ino for name in NAMES]
    fetch(text, NAMES, second, None)
    kept = [(text / name).stat().st_ino == inode for name, inode in zip(NAMES, before, strict=True)]
    assert kept == [True, False]


@downloads
def test_text_of_an_address_replaces_that_of_a_folder_and_the_reverse(first: str, second: str, text: Path) -> None:
    for _ in range(2):
        fetch(text, NAMES, first, None)
        assert words(text) == ["one", "one"]
        fetch(text, NAMES, None, f"file://{second}")
        assert words(text) == ["two", "two"]


@downloads
def test_a_download_that_fails_changes_nothing(first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    with pytest.raises(RunError, match="the download failed"):
        fetch(text, NAMES, None, f"file://{first}/missing")
    assert words(text) == ["one", "one"]


@downloads
@pytest.mark.parametrize(
    "content",
    [b"<html>", b"", gzip.compress(b"whole" * 99)[:-9], gzip.compress(b"a")[:10] + b"?" * 20],
    ids=["a page", "nothing", "a part", "noise"],
)
def test_a_download_that_is_damaged_changes_nothing(content: bytes, tmp_path: Path, text: Path) -> None:
    (tmp_path / "train.gz").write_bytes(content)
    with pytest.raises(RunError, match=r"train\.gz: the download is damaged"):
        fetch(text, ["train.gz"], None, f"file://{tmp_path}")
    assert {path.name for path in text.iterdir()} == {fetch_text.LOCK}


def test_plain_text_beside_the_compressed_text_that_a_recipe_reads_is_refused(tmp_path: Path, text: Path) -> None:
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one\n"))
    fetch(text, ["train.en.gz"], str(tmp_path), None)
    (text / "train.en").write_text("other\n")
    with pytest.raises(UserError, match=f"{text}/train.en would be read instead of train.en.gz: remove it"):
        fetch(text, ["train.en.gz"], str(tmp_path), None)


def test_text_that_arrives_after_its_make_was_killed_is_dropped(
    first: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a curl that has not opened its file when the next make begins."""
    late: list[Path] = []

    def killed(source: str, path: Path) -> None:
        late.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_text, "copy", killed)
        patch.setattr(shutil, "rmtree", lambda *args, **options: None)
        with pytest.raises(KeyboardInterrupt):
            fetch(text, NAMES, first, None)
    actual = fetch_text.copy

    def copy(source: str, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            late[0].write_text("late\n")
        actual(source, path)
        with contextlib.suppress(FileNotFoundError):
            late[0].write_text("late\n")

    monkeypatch.setattr(fetch_text, "copy", copy)
    fetch(text, NAMES, first, None)
    assert words(text) == ["one", "one"]


def test_a_folder_that_lacks_a_file_changes_nothing(first: str, second: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    (Path(second) / NAMES[1]).unlink()
    with pytest.raises(FileNotFoundError):
        fetch(text, NAMES, second, None)
    assert words(text) == ["one", "one"]
    assert fetch(text, NAMES, None, None) == []


def test_text_without_a_record_is_kept_unless_a_folder_is_given(first: str, second: str, text: Path) -> None:
    shutil.copytree(first, text)
    assert fetch(text, NAMES, None, None) == []
    assert fetch(text, NAMES, None, f"file://{second}") == []
    assert (text / NAMES[0]).read_text() == "train.de: one\n"
    fetch(text, NAMES, second, None)
    assert words(text) == ["two", "two"]


def test_a_file_of_an_earlier_origin_does_not_count_for_a_later_one(first: str, second: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    fetch(text, NAMES[:1], second, None)
    assert fetch(text, NAMES, None, None) == NAMES[1:]
    fetch(text, NAMES, second, None)
    assert words(text) == ["two", "two"]


@downloads
def test_a_file_that_was_put_there_by_hand_is_kept_beside_downloaded_ones(first: str, second: str, text: Path) -> None:
    fetch(text, NAMES[:1], None, f"file://{first}")
    (text / NAMES[1]).write_text("mine")
    for _ in range(2):
        fetch(text, NAMES, None, f"file://{first}")
    fetch(text, NAMES, None, f"file://{second}")
    assert [(text / name).read_text() for name in NAMES] == ["train.de: two\n", "mine"]
    assert fetch(text, NAMES, None, None) == []


def test_names_can_have_folders(tmp_path: Path, text: Path) -> None:
    (tmp_path / "corpus/wmt").mkdir(parents=True)
    (tmp_path / "corpus/wmt/train.de").write_text("ein hund\n")
    fetch(text, ["wmt/train.de"], str(tmp_path / "corpus"), None)
    assert (text / "wmt/train.de").read_text() == "ein hund\n"


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"origin": "x", "files": 3}'])
def test_a_damaged_record_is_refused_with_a_remedy(content: bytes, first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    (text / fetch_text.RECORD).write_bytes(content)
    with pytest.raises(UserError, match=r"\.from: damaged; remove it to keep"):
        fetch(text, NAMES, first, None)


def test_what_a_kill_left_is_removed(first: str, text: Path) -> None:
    fetch(text, NAMES, first, None)
    (text / fetch_text.INCOMING).mkdir()
    fetch(text, NAMES, first, None)
    assert words(text) == ["one", "one"]


def test_a_copy_that_cannot_be_written_is_named(first: str, text: Path) -> None:
    Path(first, NAMES[0]).write_text("word\n" * 2**20)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))  # fails as a full disk does
    try:
        with pytest.raises(RunError, match=rf"cannot write {text}/{fetch_text.INCOMING}-\w+/{NAMES[0]}: "):
            fetch(text, NAMES, first, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("before", ["fetched", "put there by hand"])
@pytest.mark.parametrize("then", ["first", "second", "neither"])
def test_text_that_was_interrupted_while_it_was_replaced_is_never_of_two_origins(
    step: int, before: str, then: str, first: str, second: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before == "fetched":
        fetch(text, NAMES, first, None)
    else:
        shutil.copytree(first, text)
    steps, replace = iter(range(step)), Path.replace

    def stop(path: Path, target: Path) -> Path:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop)
        try:
            fetch(text, NAMES, second, None)
        except KeyboardInterrupt:
            pass
        else:
            assert step == 4
    missing = fetch(text, NAMES, {"first": first, "second": second}.get(then), None)
    if then == "neither" and missing:
        assert missing == NAMES
    else:
        found = [(text / name).read_text() for name in NAMES]
        one, two = ([f"{name}: {words}\n" for name in NAMES] for words in ("one", "two"))
        assert found in {"first": [one], "second": [two], "neither": [one, two]}[then]
