"""A folder that appears whole or not at all."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmtkit.errors import RunError, UserError
from nmtkit.storage.atomic import (
    check_symlinks,
    check_writable,
    link_file,
    remove_partial_files,
    resumable_file,
    staged_file,
    staged_folder,
)


def always(folder: Path) -> bool:
    return True


def never(folder: Path) -> bool:
    return False


def is_own(name: str) -> bool:
    return name in ("file", "half", "first", "second")


def test_a_staged_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "new" / "result", is_own, never) as staging:
        (staging / "file").write_text("done")
        assert not (tmp_path / "new" / "result").exists()
    assert (tmp_path / "new" / "result" / "file").read_text() == "done"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["result"]


@pytest.mark.parametrize("error", [UserError("bad"), KeyboardInterrupt(), MemoryError()])
def test_an_error_leaves_the_old_folder_unchanged(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "file").write_text("old")
    with pytest.raises(type(error)), staged_folder(tmp_path / "result", is_own, always) as staging:  # noqa: PT012
        (staging / "file").write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result" / "file").read_text() == "old"


@pytest.mark.parametrize(("renames", "content"), [(1, "old"), (2, "new")])
def test_an_end_after_any_rename_leaves_a_complete_folder(
    renames: int, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "file").write_text("old")
    rename, count = Path.rename, 0

    def rename_and_end(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        renamed = rename(path, target)
        if count == renames:
            raise KeyboardInterrupt
        return renamed

    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "result", is_own, always) as staging:  # noqa: PT012
        (staging / "file").write_text("new")
        monkeypatch.setattr(Path, "rename", rename_and_end)
    assert (tmp_path / "result" / "file").read_text() == content
    assert not (tmp_path / ".result.partial").exists()


def test_a_mount_point_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with (
        pytest.raises(UserError, match="is a mount point, which cannot be replaced: choose a folder inside it"),
        staged_folder(tmp_path, is_own, always),
    ):
        pytest.fail("the block has begun")


def test_a_read_only_folder_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files could not be removed, and would be in the way of the next run. Root may write to any folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder or not mode & os.W_OK)
    with pytest.raises(UserError, match="is read-only"), staged_folder(folder, is_own, lambda _: True):
        pytest.fail("the block has begun")


def test_the_error_of_a_failed_write_names_the_destination(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"cannot write .*result: No space left on device"),
        staged_folder(tmp_path / "result", is_own, never),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_result_is_replaced_completely(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with staged_folder(tmp_path / "result", is_own, always) as staging:
            (staging / content).touch()
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert [path.name for path in (tmp_path / "result").iterdir()] == ["second"]


def test_an_empty_destination_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        (staging / "file").touch()
    assert (tmp_path / "result" / "file").exists()


def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(UserError, match="is the current folder, which cannot be replaced: run the command from another"),
        staged_folder(Path(), is_own, always),
    ):
        pass


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_foreign_destination_is_refused_and_unchanged(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "result").mkdir()
    (tmp_path / "result" / "thesis" if kind == "folder" else tmp_path / "result").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(UserError, match="exists, and this command did not write all of it"),
        staged_folder(tmp_path / "result", is_own, never),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".result.partial").mkdir()
    (tmp_path / ".result.partial" / "half").touch()
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        assert list(staging.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_the_old_result_is_restored_after_a_kill_during_replacement(tmp_path: Path) -> None:
    (tmp_path / ".result.replaced").mkdir()
    (tmp_path / ".result.replaced" / "file").write_text("old")
    with pytest.raises(UserError), staged_folder(tmp_path / "result", is_own, always):
        raise UserError("the next run fails")
    assert (tmp_path / "result" / "file").read_text() == "old"


def test_leftovers_of_a_kill_after_replacement_do_not_block_the_next_run(tmp_path: Path) -> None:
    for folder in (".result.replaced", "result"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    with staged_folder(tmp_path / "result", is_own, always) as staging:
        (staging / "file").write_text("new")
    assert (tmp_path / "result" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_leftover_that_another_process_removes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed_meanwhile(descriptor: int) -> list[str]:
        names = original(descriptor)
        if "half" in names:
            shutil.rmtree(tmp_path / ".result.replaced")
        return names

    original = os.listdir
    for folder, name in ((".result.replaced", "half"), ("result", "file")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    monkeypatch.setattr("nmtkit.storage.leftovers.os.listdir", removed_meanwhile)
    with staged_folder(tmp_path / "result", is_own, always) as staging:
        (staging / "file").write_text("new")
    assert (tmp_path / "result" / "file").read_text() == "new"
    assert original(tmp_path) == ["result"]


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        (staging / "file").touch()
        with pytest.raises(UserError, match="another process"), staged_folder(tmp_path / "result", is_own, never):
            pass
    assert (tmp_path / "result" / "file").exists()


def test_the_root_is_refused_as_a_destination() -> None:
    with pytest.raises(UserError, match=r"^/ is the root"), staged_folder(Path("/"), is_own, always):
        pass


def test_a_destination_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"), staged_folder(tmp_path / "file" / "result", is_own, never):
        pass


# A file that an error leaves beside its name


def test_a_file_appears_when_it_is_complete_and_is_resumed_after_an_interruption(tmp_path: Path) -> None:
    for number, resume in enumerate([False, True, True], 1):
        with pytest.raises(KeyboardInterrupt), resumable_file(tmp_path / "out", resume) as file:  # noqa: PT012
            assert file.read() == b"line\n" * (number - 1)
            file.write(b"line\n")
            raise KeyboardInterrupt
        assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    with resumable_file(tmp_path / "out", True) as file:
        assert file.read() == b"line\n" * 3
    assert (tmp_path / "out").read_bytes() == b"line\n" * 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_without_resume_a_partial_file_is_overwritten_and_removed_if_empty_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("old")
    with pytest.raises(UserError), resumable_file(tmp_path / "out", False) as file:  # noqa: PT012
        assert file.read() == b""
        raise UserError("before anything is written")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    with resumable_file(tmp_path / "out", False) as file:
        file.write(b"first")
        with pytest.raises(UserError, match="another process"), resumable_file(tmp_path / "out", False):
            pass
    assert (tmp_path / "out").read_bytes() == b"first"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names here")
def test_an_unnamed_pipe_is_written_directly() -> None:
    """As /dev/stdout is one, and what a shell puts in the place of >(…)."""
    reader, writer = os.pipe()
    pipe = Path(f"/dev/fd/{writer}")
    check_writable(pipe)
    with resumable_file(pipe, False) as file:
        file.write(b"one ")
    with staged_file(pipe) as file:
        file.write(b"two")
    os.close(writer)
    with os.fdopen(reader, "rb") as read:
        assert read.read() == b"one two"


def test_a_circular_symlink_is_replaced_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    check_writable(tmp_path / "loop")
    with staged_file(tmp_path / "loop") as file:
        file.write(b"a file now")
    assert (tmp_path / "loop").read_bytes() == b"a file now"


# Other users of the same folder: files planted at names that nmtkit will use


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with files of the names that nmtkit writes, which no attack may change."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "file").write_text("years of work")
    return folder


def plant(kind: str, path: Path, elsewhere: Path) -> None:
    if kind == "link to folder":
        path.symlink_to(elsewhere)
    elif kind == "link to file":
        path.symlink_to(elsewhere / "file")
    elif kind == "dangling link":
        path.symlink_to(elsewhere / "planted")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        os.link(elsewhere / "file", path)
    elif kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "file").write_text("mine")


def contents(folder: Path) -> list[tuple[str, int, str]]:
    """What stands in a folder: names, kinds, and the contents of files and links."""
    found = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        text = str(path.readlink()) if stat.S_ISLNK(mode) else path.read_text() if stat.S_ISREG(mode) else ""
        found.append((str(path.relative_to(folder)), stat.S_IFMT(mode), text))
    return found


LINKS = ("link to folder", "link to file", "dangling link", "pipe")


@pytest.mark.parametrize("name", [".result.partial", ".result.replaced"])
@pytest.mark.parametrize("kind", [*LINKS, "hard link", "file"])
def test_staging_is_refused_if_a_file_link_or_pipe_has_the_name_of_its_folder(
    name: str, kind: str, tmp_path: Path, elsewhere: Path
) -> None:
    plant(kind, tmp_path / name, elsewhere)
    before = contents(tmp_path)
    with (
        pytest.raises(UserError, match=rf"{name} is in the way \(it is not a folder\): remove it, or choose another"),
        staged_folder(tmp_path / "result", is_own, always),
    ):
        pass
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [".result.partial", ".result.replaced"])
@pytest.mark.parametrize("kind", ["link to file", "pipe", "folder", "foreign name"])
def test_a_leftover_folder_with_foreign_content_is_not_removed(
    name: str, kind: str, tmp_path: Path, elsewhere: Path
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "half").write_text("left")
    if kind == "foreign name":
        (tmp_path / name / "thesis").write_text("years of work")
        reason = "it holds thesis, which nmtkit does not write there"
    else:
        plant(kind, tmp_path / name / "file", elsewhere)
        reason = "it holds file, which is not a regular file"
    before = contents(tmp_path)
    with (
        pytest.raises(UserError, match=rf"{name} is in the way \({reason}\)"),
        staged_folder(tmp_path / "result", is_own, always),
    ):
        pass
    assert contents(tmp_path) == before


@pytest.fixture
def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on files belong to somebody else than the user who runs nmtkit."""
    monkeypatch.setattr("nmtkit.storage.leftovers._creating_user", lambda folder: os.geteuid() + 1)


@pytest.mark.parametrize("name", [".result.partial", ".result.replaced"])
@pytest.mark.usefixtures("another_user")
def test_no_folder_of_another_user_is_cleared(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").write_text("theirs")
    with (
        pytest.raises(UserError, match=r"is in the way \(it belongs to another user\)"),
        staged_folder(tmp_path / "result", is_own, always),
    ):
        pass
    assert (tmp_path / name / "file").read_text() == "theirs"


def test_the_owner_of_a_leftover_is_compared_with_the_owner_of_new_files(tmp_path: Path) -> None:
    (tmp_path / ".result.partial").mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(tmp_path / ".result.partial", 12345, -1)
    with pytest.raises(UserError, match="another user"), staged_folder(tmp_path / "result", is_own, always):
        pass
    os.chown(tmp_path / ".result.partial", tmp_path.stat().st_uid, -1)
    with staged_folder(tmp_path / "result", is_own, always) as staging:
        (staging / "file").touch()


def test_a_staged_folder_is_private_until_it_is_finished(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        (tmp_path / ".result.partial").mkdir(mode=0o700)  # as a killed process leaves it
        with staged_folder(tmp_path / "result", is_own, never) as staging:
            assert stat.S_IMODE(staging.stat().st_mode) == 0o700
            (staging / "file").touch()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == 0o775


def test_an_error_empties_the_staged_folder_and_not_a_symlink_that_took_its_name(
    tmp_path: Path, elsewhere: Path
) -> None:
    with pytest.raises(UserError, match="bad"), staged_folder(tmp_path / "result", is_own, never) as staging:  # noqa: PT012
        (staging / "half").touch()
        staging.rename(tmp_path / "taken")
        staging.symlink_to(elsewhere)
        raise UserError("bad")
    assert list((tmp_path / "taken").iterdir()) == []
    assert (elsewhere / "file").read_text() == "years of work"


def write_staged(folder: Path) -> None:
    with staged_file(folder / "out") as file:
        file.write(b"new")


def write_resumable(folder: Path) -> None:
    with resumable_file(folder / "out", False) as file:
        file.write(b"new")


def write_link(folder: Path) -> None:
    (folder / "source").write_bytes(b"new")
    link_file(folder / "source", folder / "out")


STAGED: dict[str, Callable[[Path], None]] = {
    "staged_file": write_staged,
    "check_writable": lambda folder: check_writable(folder / "out"),
    "link_file": write_link,
}


@pytest.mark.parametrize("kind", [*LINKS, "folder"])
def test_a_link_pipe_or_folder_at_the_name_of_a_partial_file_is_not_written_through(
    kind: str, tmp_path: Path, elsewhere: Path
) -> None:
    plant(kind, tmp_path / "out.partial", elsewhere)
    before = contents(elsewhere)
    with pytest.raises(
        UserError, match=r"out.partial is in the way \(it is not a file\): remove it, or choose another"
    ):
        write_resumable(tmp_path)
    assert contents(elsewhere) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("another_user")
def test_no_partial_file_of_another_user_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_text("theirs")
    with pytest.raises(UserError, match=r"is in the way \(it belongs to another user\)"):
        write_resumable(tmp_path)
    assert (tmp_path / "out.partial").read_text() == "theirs"


@pytest.mark.parametrize("write", STAGED.values(), ids=STAGED)
@pytest.mark.parametrize("kind", [*LINKS, "hard link", "folder"])
def test_nothing_at_the_temporary_name_is_written_through(
    write: Callable[[Path], None], kind: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are drawn at random; here someone has guessed the first."""
    numbers = (bytes([number] * 4) for number in range(2))
    monkeypatch.setattr("nmtkit.storage.atomic.os.urandom", lambda count: next(numbers))
    plant(kind, tmp_path / ".out.00000000.partial", elsewhere)
    before = contents(elsewhere)
    with contextlib.suppress(UserError):
        write(tmp_path)
    assert contents(elsewhere) == before
    assert not (tmp_path / "out").exists() or (tmp_path / "out").read_text() == "new"


def test_two_writers_with_one_process_id_do_not_write_into_each_other(tmp_path: Path) -> None:
    """As in two containers that share a folder, where both may be process 1."""
    with staged_file(tmp_path / "out") as file:
        file.write(b"begun, ")
        with staged_file(tmp_path / "out") as other:
            other.write(b"half")
            other.flush()
            file.write(b"ended")
        assert (tmp_path / "out").read_bytes() == b"half"
    assert (tmp_path / "out").read_bytes() == b"begun, ended"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("write", [STAGED["staged_file"], STAGED["check_writable"]])
def test_a_signal_while_the_temporary_file_is_created_leaves_none(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, destination: Path) -> None:
        path.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("nmtkit.storage.atomic._create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resume", [False, True])
def test_a_partial_file_with_a_second_hard_link_is_refused(resume: bool, tmp_path: Path, elsewhere: Path) -> None:
    plant("hard link", tmp_path / "out.partial", elsewhere)
    with pytest.raises(UserError, match="it has other hard links"), resumable_file(tmp_path / "out", resume):
        pass
    assert (elsewhere / "file").read_text() == "years of work"


def test_a_second_name_is_a_hard_link_or_a_copy_if_hard_links_are_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*arguments: Any, **more: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    (tmp_path / "out").write_text("old")
    for _ in range(2):  # the second time, both are names of one file already
        write_link(tmp_path)
        assert (tmp_path / "out").samefile(tmp_path / "source")
    monkeypatch.setattr("nmtkit.storage.atomic.os.link", no_links)
    write_link(tmp_path)
    assert not (tmp_path / "out").samefile(tmp_path / "source")
    assert (tmp_path / "out").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_cleaning_removes_only_the_partial_files_of_killed_processes(tmp_path: Path, elsewhere: Path) -> None:
    for name in (".file.17.partial", ".file.0a1b2c3d.partial"):
        (tmp_path / name).write_text("half")
    others = (".other.17.partial", ".file.x.partial", ".file.partial", "file.17.partial", ".file.17.partial.bak")
    for name in others:
        (tmp_path / name).write_text("half")
    planted = [f".file.{number}.partial" for number in range(len(LINKS))]
    for name, kind in zip(planted, LINKS, strict=True):
        plant(kind, tmp_path / name, elsewhere)
    remove_partial_files(tmp_path, is_own)
    assert {path.name for path in tmp_path.iterdir()} == {*others, *planted, "elsewhere"}
    assert contents(elsewhere) == [("file", stat.S_IFREG, "years of work")]


@pytest.mark.usefixtures("another_user")
def test_clearing_leaves_the_files_of_another_user(tmp_path: Path) -> None:
    (tmp_path / ".file.17.partial").write_text("theirs")
    remove_partial_files(tmp_path, is_own)
    assert (tmp_path / ".file.17.partial").read_text() == "theirs"


# Others at the same moment: between a check and the use of what was checked


@pytest.mark.parametrize("kind", ["link to folder", "pipe"])
def test_a_folder_that_is_swapped_before_it_is_opened_is_not_followed(
    kind: str, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / ".result.partial"
    staging.mkdir()

    def swap(folder: Path) -> int:
        staging.rename(tmp_path / "moved")
        plant(kind, staging, elsewhere)
        return os.geteuid()

    monkeypatch.setattr("nmtkit.storage.leftovers._creating_user", swap)
    with pytest.raises(UserError, match="cannot write"), staged_folder(tmp_path / "result", is_own, always):
        pass
    assert (elsewhere / "file").read_text() == "years of work"


def test_a_folder_swapped_before_it_is_locked_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = tmp_path / ".result.partial"
    staging.mkdir()
    flock = fcntl.flock

    def swap(handle: int, how: int) -> None:
        staging.rename(tmp_path / "moved")
        plant("folder", staging, tmp_path)
        flock(handle, how)

    monkeypatch.setattr("nmtkit.storage.atomic.fcntl.flock", swap)
    with pytest.raises(UserError, match="another process"), staged_folder(tmp_path / "result", is_own, always):
        pass
    assert (staging / "file").read_text() == "mine"


def test_a_link_planted_before_the_folder_is_private_is_not_written_through(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fchmod = os.fchmod

    def planted(handle: int, mode: int) -> None:
        plant("link to file", tmp_path / ".result.partial" / "file", elsewhere)
        fchmod(handle, mode)

    monkeypatch.setattr("nmtkit.storage.access_rights.os.fchmod", planted)
    with pytest.raises(UserError, match="it holds file"), staged_folder(tmp_path / "result", is_own, always):
        pass
    assert (elsewhere / "file").read_text() == "years of work"


def test_a_file_that_is_swapped_before_it_is_opened_is_not_followed(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "out.partial"
    partial.write_text("left")

    def swap(folder: Path) -> int:
        partial.unlink()
        plant("link to file", partial, elsewhere)
        return os.geteuid()

    monkeypatch.setattr("nmtkit.storage.leftovers._creating_user", swap)
    with pytest.raises(UserError, match="cannot write"), resumable_file(tmp_path / "out", False):
        pass
    assert (elsewhere / "file").read_text() == "years of work"


def test_a_result_renamed_while_its_partial_file_is_opened_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "out.partial"
    partial.write_text("whole")
    flock = fcntl.flock

    def finish(handle: int, how: int) -> None:
        partial.rename(tmp_path / "out")
        flock(handle, how)

    monkeypatch.setattr("nmtkit.storage.atomic.fcntl.flock", finish)
    with pytest.raises(UserError, match="another process"), resumable_file(tmp_path / "out", False):
        pass
    assert (tmp_path / "out").read_text() == "whole"


def test_a_result_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is synced, then the folder that names it, and both before the rename, which is synced last."""
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append((os.fstat(handle).st_ino, (tmp_path / "result").exists()))
        fsync(handle)

    monkeypatch.setattr("nmtkit.storage.atomic.os.fsync", noted)
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        (staging / "file").touch()
    folder, parent = (tmp_path / "result").stat().st_ino, tmp_path.stat().st_ino
    assert synced == [((tmp_path / "result" / "file").stat().st_ino, False), (folder, False), (parent, True)]
    (tmp_path / "result" / "file").unlink()
    (tmp_path / "result").rmdir()
    for write in (staged_file(tmp_path / "result"), resumable_file(tmp_path / "result", False)):
        synced.clear()
        with write as file:
            file.write(b"content")
        assert synced == [((tmp_path / "result").stat().st_ino, False), (parent, True)]
        (tmp_path / "result").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("full", [False, True])
def test_no_folder_of_another_user_is_replaced(full: bool, tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    if full:
        (tmp_path / "result" / "file").write_text("theirs")
    os.chown(tmp_path / "result", 12345, -1)
    before = contents(tmp_path)
    with (
        pytest.raises(UserError, match=r"result cannot be replaced \(it belongs to another user\)"),
        staged_folder(tmp_path / "result", is_own, always),
    ):
        pass
    assert contents(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize(
    ("mode", "link_owner", "is_refused"),
    [(0o1777, 12345, True), (0o777, 12345, True), (0o775, 12345, True), (0o1777, 0, False)],
)
def test_a_symlink_of_another_user_in_a_shared_folder_is_not_followed(
    mode: int, link_owner: int, is_refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "thesis").write_text("precious")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "result").symlink_to("../thesis")
    os.chown(shared / "result", link_owner, -1, follow_symlinks=False)
    if is_refused:
        with pytest.raises(UserError, match="result is a symlink of another user"), staged_file(shared / "result"):
            pass
    else:
        with staged_file(shared / "result") as file:
            file.write(b"new")
    assert (tmp_path / "thesis").read_text() == ("precious" if is_refused else "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_symlink_of_another_user_is_followed_only_in_a_folder_that_others_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to("../home")
    for path in (shared, shared / "link"):
        os.chown(path, 12345, -1, follow_symlinks=False)
    shared.chmod(0o755)
    check_symlinks(shared / "link" / "result")
    shared.chmod(0o775)
    with pytest.raises(UserError, match="shared/link is a symlink of another user"):
        check_symlinks(shared / "link" / "result")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a pipe to another user")
@pytest.mark.parametrize("owner", [12345, 0])
def test_a_named_pipe_of_another_user_in_a_shared_folder_is_not_written(owner: int, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    os.mkfifo(shared / "result")
    os.chown(shared / "result", owner, -1)
    (tmp_path / "link").symlink_to("shared/result")
    for path in (shared / "result", tmp_path / "link"):
        if owner:
            with pytest.raises(UserError, match="result is a pipe of another user"):
                check_writable(path)
        else:
            check_writable(path)


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_the_permissions_of_the_one_that_it_replaces(mode: int, tmp_path: Path) -> None:
    for write in (write_staged, write_resumable):
        (tmp_path / "out").touch()
        (tmp_path / "out").chmod(mode)
        write(tmp_path)
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


def test_a_partial_file_is_as_private_as_the_file_that_it_will_replace(tmp_path: Path) -> None:
    (tmp_path / "out").touch(0o600)
    for write in (staged_file(tmp_path / "out"), resumable_file(tmp_path / "out", False)):
        with write as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize(("mode_of_folder", "owner"), [(0o775, 12345), (0o1777, 0)])
def test_a_file_that_root_replaces_keeps_its_owner_unless_everyone_can_write_to_its_folder(
    mode_of_folder: int, owner: int, tmp_path: Path
) -> None:
    tmp_path.chmod(mode_of_folder)
    for write in (write_staged, write_resumable):
        (tmp_path / "out").touch(0o600)
        os.chown(tmp_path / "out", 12345, -1)
        write(tmp_path)
        status = (tmp_path / "out").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (owner, 0o600)


def test_an_interrupted_output_of_root_can_be_resumed_before_it_replaces_a_file_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    if os.geteuid() == 0:
        os.chown(tmp_path / "out", 12345, -1)
    with pytest.raises(KeyboardInterrupt), resumable_file(tmp_path / "out", False) as file:  # noqa: PT012
        file.write(b"half")
        raise KeyboardInterrupt
    with resumable_file(tmp_path / "out", True) as file:
        assert file.read() == b"half"


def write_folder(folder: Path) -> None:
    with staged_folder(folder / "out", is_own, always) as staging:
        (staging / "file").touch()


def make_empty(path: Path, is_folder: bool) -> None:
    if is_folder:
        path.mkdir()
    else:
        path.touch()


REPLACING = pytest.mark.parametrize("write", [write_staged, write_resumable, write_folder])


@REPLACING
@pytest.mark.parametrize("may_change_group", [True, False])
def test_a_replaced_file_or_folder_keeps_its_group_or_gives_no_group_access(
    may_change_group: bool, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []

    def changed(handle: int, user: int, group: int) -> None:
        groups.append(group)
        if not may_change_group:
            raise PermissionError

    fstat, own = os.fstat, os.getegid()

    def in_another_group(handle: int) -> os.stat_result:
        status = list(fstat(handle))
        status[stat.ST_GID] = own + 1
        return os.stat_result(status)

    make_empty(tmp_path / "out", write is write_folder)
    (tmp_path / "out").chmod(0o750)
    with monkeypatch.context() as other:
        other.setattr("nmtkit.storage.access_rights.os.fchown", changed)
        other.setattr("nmtkit.storage.access_rights.os.fstat", in_another_group)
        write(tmp_path)
    assert set(groups) == {own}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == (0o750 if may_change_group else 0o700)


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """An access control list as Linux stores it: tag, permissions and id of each entry."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ACL = "system.posix_acl_access"
OWNER, USER, GROUP, MASK, OTHER = 1, 2, 4, 16, 32
NO_ID = 2**32 - 1


@REPLACING
def test_a_replaced_file_or_folder_keeps_its_access_list(write: Callable[[Path], None], tmp_path: Path) -> None:
    """Without the list, its mask would be the permissions of the group."""
    one_user = access_list((OWNER, 7, NO_ID), (USER, 5, 1001), (GROUP, 0, NO_ID), (MASK, 5, NO_ID), (OTHER, 0, NO_ID))
    make_empty(tmp_path / "out", write is write_folder)
    try:
        os.setxattr(tmp_path / "out", ACL, one_user)
    except OSError:
        pytest.skip("a file system without access control lists")
    write(tmp_path)
    assert os.getxattr(tmp_path / "out", ACL) == one_user
    os.removexattr(tmp_path / "out", ACL)
    (tmp_path / "out").chmod(0o740)
    os.setxattr(tmp_path, "system.posix_acl_default", one_user)
    write(tmp_path)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o740
    with pytest.raises(OSError, match="No data available"):
        os.getxattr(tmp_path / "out", ACL)


@REPLACING
def test_an_access_list_that_cannot_be_copied_gives_no_group_access(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    make_empty(tmp_path / "out", write is write_folder)
    (tmp_path / "out").chmod(0o770)
    monkeypatch.setattr("nmtkit.storage.access_rights.os.getxattr", lambda path, name: b"list")
    monkeypatch.setattr("nmtkit.storage.access_rights.os.setxattr", refused)
    write(tmp_path)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_a_file_that_replaces_another_is_private_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user who opens it before it has its permissions would read all that is written later."""
    created, fchmod = [], os.fchmod

    def noted(handle: int, mode: int) -> None:
        created.append(stat.S_IMODE(os.fstat(handle).st_mode))
        fchmod(handle, mode)

    (tmp_path / "out").touch()
    monkeypatch.setattr("nmtkit.storage.access_rights.os.fchmod", noted)
    for write in (write_staged, write_resumable):
        write(tmp_path)
    assert created == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", [0o700, 0o775])
def test_a_folder_keeps_the_permissions_of_the_one_that_it_replaces(mode: int, tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result").chmod(mode)
    with staged_folder(tmp_path / "result", is_own, always) as staging:
        (staging / "file").touch()
    assert stat.S_IMODE((tmp_path / "result").stat().st_mode) == mode


# File systems that lack something


def no_locks(handle: int, how: int) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_a_file_system_without_locks_is_written_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nmtkit.storage.atomic.fcntl.flock", no_locks)
    write_resumable(tmp_path)
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        (staging / "file").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "result"]
    assert caplog.messages == [
        f"{tmp_path / name} cannot be locked against other processes (Function not implemented)"
        for name in ("out", "result")
    ]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.ENOTSUP])
@REPLACING
def test_a_file_system_without_permissions_is_written(
    write: Callable[[Path], None], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(handle: int, mode: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("nmtkit.storage.access_rights.os.fchmod", unsupported)
    write(tmp_path)
    write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_written(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr("nmtkit.storage.atomic.os.fsync", files_only)
    write_staged(tmp_path)
    write_resumable(tmp_path)
    with staged_folder(tmp_path / "result", is_own, never) as staging:
        (staging / "file").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "result"]


def test_a_folder_that_cannot_be_read_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *arguments, **more)

    monkeypatch.setattr("nmtkit.storage.atomic.os.open", refusing)
    write_staged(tmp_path)
    assert (tmp_path / "out").read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_folder_whose_sync_fails_is_an_error(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("nmtkit.storage.atomic.fsync", fail)
    with pytest.raises(RunError, match=f"cannot write .*: {os.strerror(number)}"):
        write_staged(tmp_path)


def test_a_folder_that_overlayfs_cannot_rename_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lies in the image of a container."""
    result = tmp_path / "result"
    rename = Path.rename

    def across_layers(path: Path, target: Path) -> Path:
        if path == result:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", across_layers)
    for content in ("old", "new"):
        with staged_folder(result, is_own, always) as staging:
            (staging / "file").write_text(content)
    assert (result / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


@pytest.mark.parametrize("write", [write_staged, write_resumable])
def test_a_file_that_is_a_mount_point_gets_the_content(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that `docker -v FILE:FILE` shares with the host, which cannot be replaced."""

    def busy(path: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "Device or resource busy")

    (tmp_path / "out").write_text("an older and longer content")
    number = (tmp_path / "out").stat().st_ino
    monkeypatch.setattr(Path, "replace", busy)
    write(tmp_path)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert (tmp_path / "out").stat().st_ino == number
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
