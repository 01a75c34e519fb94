"""A full disk or quota ends a command with one line and exit code 1, and the earlier files stay."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import TEXT, Faulty, contents
from training_runs import updates

COMMANDS = ["nmt-preprocess", "nmt-average", "nmt-export", "nmt-generate", "nmt-train"]


def check(command: str, words: list[object], faulty: Faulty, result: Path, **limit: int) -> None:
    """Run a command without room for its result, and again with room."""
    before = contents(result) if result.exists() else None
    failed = faulty(command, *words, input=TEXT, **limit)
    assert failed.code == 1, failed.output
    assert "Traceback" not in failed.output
    assert f"{command}: cannot write {result}" in failed.last_line
    assert before is None or contents(result) == before
    assert [path.name for path in result.parent.iterdir() if path.name.startswith(".")] == []
    if command != "nmt-generate":  # which keeps the lines that there was room for
        assert [path.name for path in result.parent.glob("*.partial")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_on_the_size_of_files_is_reported_in_one_line_and_loses_nothing(
    command: str, command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    words, result = command_lines[command], tmp_path / "result"
    assert faulty(command, *words, input=TEXT).code == 0
    more: list[object] = ["--max-updates", 9] if command == "nmt-train" else []
    check(command, [*words, *more], faulty, result, limit=30_000 if more else 300)  # of the log, too
    again = faulty(command, *words, *more, input=TEXT)
    assert again.code == 0, again.output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 500 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("command", ["nmt-preprocess", "nmt-average", "nmt-export"])
def test_a_full_disk_is_reported_in_one_line_and_loses_nothing(
    command: str, command_lines: dict[str, list[object]], faulty: Faulty, small_disk: Path
) -> None:
    (small_disk / "other").write_bytes(bytes(490_000))
    words = command_lines[command][:-1]
    check(command, [*words, small_disk / "result"], faulty, small_disk / "result")
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_a_run_continues_and_saves_later_when_a_full_disk_has_room_again(
    command_lines: dict[str, list[object]], faulty: Faulty, small_disk: Path
) -> None:
    words, result = command_lines["nmt-train"], small_disk / "run"
    words = [result if word == command_lines["nmt-average"][-1] else word for word in words]
    (small_disk / "other").write_bytes(bytes(320_000))  # leaves room for one checkpoint
    failed = faulty("nmt-train", *words, "--keep-last", 9)
    assert (failed.code, "the next save tries again" in failed.output) == (1, True), failed.output
    assert failed.last_line.endswith("earlier checkpoints are intact")
    assert updates(result) == [2]
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    assert faulty("nmt-train", *words, "--keep-last", 9).code == 0
    assert updates(result) == [2, 4, 6]
