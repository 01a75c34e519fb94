"""Atomic writes: a result is complete or absent, and as private as the one before it."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.errors import RunError, UserError
from nmtkit.storage.atomic import (
    check_writable,
    link_file,
    remove_partial_files,
    resumable_file,
    staged_file,
    staged_folder,
)


def anything(folder: Path) -> bool:
    return True


def nothing(folder: Path) -> bool:
    return False


def write_folder(folder: Path, content: str = "new") -> None:
    with staged_folder(folder, anything) as staging:
        (staging / "file").write_text(content)


def write_file(path: Path, content: str = "new") -> None:
    with staged_file(path) as file:
        file.write(content.encode())


def write_resumable(path: Path, content: str = "new") -> None:
    with resumable_file(path, resume=False) as file:
        file.write(content.encode())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Complete or absent


def test_a_folder_appears_and_replaces_another_only_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "parent" / "folder"
    for content in ("old", "new"):
        with staged_folder(folder, anything) as staging:
            (staging / "file").write_text(content)
            (staging / content).touch()
            assert (folder / "file").exists() == (content == "new")
    assert names(folder) == ["file", "new"]
    assert names(folder.parent) == ["folder"]


@pytest.mark.parametrize("error", [UserError("bad"), KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_error_leaves_the_old_result_and_nothing_else(kind: str, error: BaseException, tmp_path: Path) -> None:
    result = tmp_path / "result"
    (write_folder if kind == "folder" else write_file)(result, "old")
    with pytest.raises(RunError if isinstance(error, OSError) else type(error)) as raised:  # noqa: SIM117
        with staged_folder(result, anything) if kind == "folder" else staged_file(result):
            raise error
    assert "No space left" not in str(error) or str(result) in str(raised.value)
    assert (result / "file" if kind == "folder" else result).read_text() == "old"
    assert names(tmp_path) == ["result"]


def test_a_folder_that_may_not_be_replaced_is_refused_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "other", "theirs")
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("other", "file", "here", "/"):
        with pytest.raises(UserError, match=name), staged_folder(tmp_path / name, nothing):
            pass
    assert (tmp_path / "other/file").read_text() == "theirs"
    assert names(tmp_path) == ["file", "here", "other"]
    with pytest.raises(UserError, match="mount point"), staged_folder(Path("/proc"), anything):
        pytest.fail("the block has begun")


def test_two_writers_of_one_process_id_do_not_write_into_each_other(tmp_path: Path) -> None:
    """As in two containers that share a folder, where both may be process 1."""
    with staged_file(tmp_path / "out") as file:
        write_file(tmp_path / "out", "half")
        file.write(b"whole")
        assert (tmp_path / "out").read_bytes() == b"half"
    assert (names(tmp_path), (tmp_path / "out").read_bytes()) == (["out"], b"whole")


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with staged_folder(tmp_path / "empty", nothing) as staging:
        (staging / "file").touch()
    assert names(tmp_path / "empty") == ["file"]


def test_a_symlink_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    for name, write in (("file", write_file), ("folder", write_folder), ("output", write_resumable)):
        write(tmp_path / name, "old")
        (tmp_path / f"link-{name}").symlink_to(name)
        write(tmp_path / f"link-{name}", "new")
        target = tmp_path / name / "file" if name == "folder" else tmp_path / name
        assert ((tmp_path / f"link-{name}").is_symlink(), target.read_text()) == (True, "new")
    (tmp_path / "loop").symlink_to("loop")
    write_file(tmp_path / "loop")
    assert (tmp_path / "loop").read_text() == "new"


def test_a_pipe_is_written_directly() -> None:
    for write in (write_file, write_resumable):
        reader, writer = os.pipe()
        write(Path(f"/dev/fd/{writer}"))
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert pipe.read() == "new"


def test_a_second_name_follows_the_first_one(tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        write_file(tmp_path / name, name)
        link_file(tmp_path / name, tmp_path / "last")
        assert (tmp_path / "last").samefile(tmp_path / name)
    assert names(tmp_path) == ["last", "one", "two"]


def test_a_destination_that_cannot_be_created_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing/file", tmp_path / "file/file", tmp_path):
        with pytest.raises(UserError, match="cannot write"):
            check_writable(path)
    check_writable(tmp_path / "new")
    assert names(tmp_path) == ["file"]


# What is left of a killed process


def test_leftovers_are_removed_and_a_folder_that_was_being_replaced_is_restored(tmp_path: Path) -> None:
    for kind in ("partial", "replaced"):
        (tmp_path / f".folder.0123456789abcdef.{kind}").mkdir()
        (tmp_path / f".folder.0123456789abcdef.{kind}" / "file").write_text(kind)
    (tmp_path / ".folders.0123456789abcdef.partial").mkdir()  # of another destination
    with pytest.raises(UserError), staged_folder(tmp_path / "folder", anything):
        raise UserError("bad")
    assert (tmp_path / "folder/file").read_text() == "replaced"
    assert names(tmp_path) == [".folders.0123456789abcdef.partial", "folder"]


def test_a_leftover_that_can_be_resumed_is_yielded_again(tmp_path: Path) -> None:
    def is_resumable(folder: Path) -> bool:
        return (folder / "progress").exists()

    for start in range(2):
        with (  # noqa: PT012
            pytest.raises(KeyboardInterrupt),
            staged_folder(tmp_path / "folder", nothing, is_resumable) as staging,
        ):
            assert (staging / "progress").exists() == (start == 1)
            (staging / "progress").touch()
            raise KeyboardInterrupt
    with staged_folder(tmp_path / "folder", nothing, is_resumable) as staging:
        (staging / "progress").rename(staging / "done")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["done"]


def test_an_interrupted_output_is_kept_and_resumed(tmp_path: Path) -> None:
    for resume, before in ((False, b""), (True, b"a"), (True, b"aa"), (False, b"")):
        with pytest.raises(KeyboardInterrupt), resumable_file(tmp_path / "out", resume) as file:  # noqa: PT012
            assert file.read() == before
            file.write(b"a")
            raise KeyboardInterrupt
        assert names(tmp_path) == ["out.partial"]
    with resumable_file(tmp_path / "out", resume=True) as file:
        assert file.read() == b"a"
    assert (names(tmp_path), (tmp_path / "out").read_bytes()) == (["out"], b"a")
    with pytest.raises(KeyboardInterrupt), resumable_file(tmp_path / "empty", resume=False):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out"]


def test_only_temporary_files_of_a_run_are_removed(tmp_path: Path) -> None:
    for name in (".own.0123abcd.partial", ".other.0123abcd.partial", "own.partial", ".own.mine.partial"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path, lambda name: name == "own")
    assert names(tmp_path) == [".other.0123abcd.partial", ".own.mine.partial", "own.partial"]


# Access


@pytest.mark.parametrize("write", [write_file, write_resumable, write_folder])
@pytest.mark.parametrize("mode", [0o700, 0o664])
def test_a_result_keeps_the_permissions_of_the_one_that_it_replaces(
    mode: int, write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "result")
    mask = os.umask(0o077)
    os.umask(mask)
    assert mode_of(tmp_path / "result") == (0o777 if write is write_folder else 0o666) & ~mask
    mode |= 0o100 if write is write_folder else 0
    (tmp_path / "result").chmod(mode)
    write(tmp_path / "result")
    assert mode_of(tmp_path / "result") == mode


def test_what_replaces_a_private_result_is_private_from_the_beginning(tmp_path: Path) -> None:
    for name, write in (("file", write_file), ("folder", write_folder)):
        write(tmp_path / name)
        (tmp_path / name).chmod(0o700)
    with staged_folder(tmp_path / "folder", anything) as staging, staged_file(tmp_path / "file"):
        (file,) = tmp_path.glob(".file.*")
        assert [mode_of(path) & 0o077 for path in (staging, file)] == [0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_result_of_root_keeps_its_owner(tmp_path: Path) -> None:
    for write in (write_file, write_resumable, write_folder):
        path = tmp_path / write.__name__
        write(path)
        os.chown(path, 12345, 54321)
        write(path)
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_second_name_is_a_hard_link_or_a_copy_where_there_are_none(tmp_path: Path) -> None:
    source, link = tmp_path / "source", tmp_path / "link"
    source.write_text("new")
    link.write_text("old")
    for _ in range(2):  # the second time, both are names of one file already
        link_file(source, link)
        assert link.samefile(source)
    link_file(Path("/proc/self/status"), link)  # a file of another file system cannot be linked
    assert "Name:" in link.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "source"]
