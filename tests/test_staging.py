"""A folder that appears whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from nmtkit.errors import RunError, UserError
from nmtkit.staging import check_writable, resumable_file, staged_file, staged_folder


def always(folder: Path) -> bool:
    return True


def never(folder: Path) -> bool:
    return False


def test_the_folder_appears_only_at_the_end(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "new" / "result", never) as staging:
        (staging / "file").write_text("done")
        assert not (tmp_path / "new" / "result").exists()
    assert (tmp_path / "new" / "result" / "file").read_text() == "done"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["result"]


@pytest.mark.parametrize("error", [UserError("bad"), KeyboardInterrupt(), MemoryError()])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "file").write_text("old")
    with pytest.raises(type(error)), staged_folder(tmp_path / "result", always) as staging:  # noqa: PT012
        (staging / "file").write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result" / "file").read_text() == "old"


def test_a_failing_write_names_the_destination(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"cannot write .*result: No space left on device"),
        staged_folder(tmp_path / "result", never),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_result_is_replaced_whole(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with staged_folder(tmp_path / "result", always) as staging:
            (staging / content).touch()
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert [path.name for path in (tmp_path / "result").iterdir()] == ["second"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    with staged_folder(tmp_path / "result", never) as staging:
        (staging / "file").touch()
    assert (tmp_path / "result" / "file").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "result").mkdir()
    (tmp_path / "result" / "thesis" if kind == "folder" else tmp_path / "result").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="exists and is something else"), staged_folder(tmp_path / "result", never):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".result.partial").mkdir()
    (tmp_path / ".result.partial" / "half").touch()
    with staged_folder(tmp_path / "result", never) as staging:
        assert list(staging.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_process_killed_while_replacing_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".result.replaced").mkdir()
    (tmp_path / ".result.replaced" / "file").write_text("old")
    with pytest.raises(UserError), staged_folder(tmp_path / "result", always):
        raise UserError("the next run fails")
    assert (tmp_path / "result" / "file").read_text() == "old"


def test_a_process_killed_after_replacing_does_not_stand_in_the_next_ones_way(tmp_path: Path) -> None:
    for folder in (".result.replaced", "result"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    with staged_folder(tmp_path / "result", always) as staging:
        (staging / "file").write_text("new")
    assert (tmp_path / "result" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_two_processes_do_not_write_the_same_folder(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "result", never) as staging:
        (staging / "file").touch()
        with pytest.raises(UserError, match="another process"), staged_folder(tmp_path / "result", never):
            pass
    assert (tmp_path / "result" / "file").exists()


def test_the_root_is_no_destination() -> None:
    with pytest.raises(UserError, match=r"^/ is the root"), staged_folder(Path("/"), lambda _: True):
        pass


def test_a_destination_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"), staged_folder(tmp_path / "file" / "result", never):
        pass


# A file that an error leaves beside its name


def test_a_file_appears_at_the_end_and_what_an_error_leaves_is_gone_on_with(tmp_path: Path) -> None:
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


def test_a_file_is_begun_anew_unless_it_is_resumed_and_left_only_if_it_holds_something(tmp_path: Path) -> None:
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
def test_a_pipe_without_a_name_is_written_directly() -> None:
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


def test_links_that_lead_in_a_circle_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    check_writable(tmp_path / "loop", [tmp_path / "loop" / "source"])
    with staged_file(tmp_path / "loop") as file:
        file.write(b"a file now")
    assert (tmp_path / "loop").read_bytes() == b"a file now"
