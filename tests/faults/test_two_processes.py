"""Two processes never write one result: the second is refused with one line, and the first is not disturbed."""

import errno
import fcntl
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from faults import TEXT, Faulty

from nmtkit.storage.atomic import resumable_file, staged_folder
from nmtkit.training.config import CheckpointConfig
from nmtkit.training.save_dir import SaveDir


def writing(command: str, result: Path) -> AbstractContextManager[Any]:
    """What a command does while it writes its result."""
    if command == "nmt-generate":
        return resumable_file(result, resume=False)
    if command == "nmt-train":
        return SaveDir(CheckpointConfig(save_dir=result)).locked()
    return staged_folder(result, lambda folder: True)


@pytest.mark.parametrize("command", ["nmt-preprocess", "nmt-export", "nmt-generate", "nmt-train"])
def test_a_result_that_another_process_is_writing_is_refused(
    command: str, command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    words, result = command_lines[command], tmp_path / "result"
    with writing(command, result):
        before = sorted(tmp_path.rglob("*"))
        refused = faulty(command, *words, input=TEXT)
        assert (refused.code, "another process" in refused.last_line) == (2, True), refused.output
        assert str(result) in refused.last_line
        assert sorted(tmp_path.rglob("*")) == before
    assert faulty(command, *words, input=TEXT).code == 0


@pytest.mark.parametrize("command", ["nmt-preprocess", "nmt-generate", "nmt-train"])
def test_a_file_system_without_locks_gives_a_warning(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with writing(command, tmp_path / "result") as output:
        if command == "nmt-preprocess":
            (output / "file").write_text("text")
    assert "cannot be locked" in caplog.text
