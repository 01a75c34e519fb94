"""A command that is killed at any instant leaves the earlier result, and the same command then completes it."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from commands import TINY
from faults import TEXT, Faulty, contents
from training_runs import DROPOUT, assert_same_end, assert_same_rows

from nmtkit.storage.atomic import resumable_file, staged_file, staged_folder

INSTANTS = 60  # more than any of the commands below changes files


def left(folder: Path) -> list[str]:
    """The hidden files and folders that a command has left beside its result."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("command", "step"), [("nmt-preprocess", 8), ("nmt-average", 1), ("nmt-export", 1), ("nmt-generate", 1)]
)
def test_a_killed_command_leaves_the_earlier_result_or_the_new_one(
    command: str, step: int, command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    words, result = command_lines[command], tmp_path / "result"
    assert faulty(command, *words, input=TEXT).code == 0
    expected = contents(result)
    kills = 0
    for instant in range(1, INSTANTS, step):
        killed = faulty(command, *words, input=TEXT, kill_at=instant)
        if killed.code == 0:
            break
        kills += 1
        assert killed.code == -signal.SIGKILL, killed.output
        if result.exists():
            assert contents(result) == expected
        else:  # between the two renames that replace a folder
            assert any(name.endswith(".replaced") for name in left(tmp_path))
        again = faulty(command, *words, input=TEXT)
        assert (again.code, contents(result)) == (0, expected), again.output
        assert left(tmp_path) == [] or command in ("nmt-average", "nmt-generate")
    assert 2 <= kills < INSTANTS // step


def test_a_sharded_dataset_is_resumed_and_ends_as_without_a_kill(
    command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    sharded = (*command_lines["nmt-preprocess"][:-2], "--shard-size", "1K", "--destdir")
    assert faulty("nmt-preprocess", *sharded, tmp_path / "straight").code == 0
    lives, resumed = 0, 0
    while True:
        lives += 1
        run = faulty("nmt-preprocess", *sharded, tmp_path / "result", kill_at=6 + 12 * lives)
        resumed += "resuming after" in run.output
        if run.code == 0:
            break
        assert run.code == -signal.SIGKILL, run.output
        assert not (tmp_path / "result").exists()
        assert lives < INSTANTS
    assert resumed >= 2
    assert contents(tmp_path / "result") == contents(tmp_path / "straight")
    assert left(tmp_path) == []


def test_translations_are_resumed_wherever_a_kill_has_cut_them(
    command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    words, result, partial = command_lines["nmt-generate"], tmp_path / "result", tmp_path / "result.partial"
    assert faulty("nmt-generate", *words, input=TEXT).code == 0
    expected = result.read_bytes()
    result.unlink()
    instants = iter(range(1, INSTANTS))
    while not partial.exists():
        assert faulty("nmt-generate", *words, input=TEXT, kill_at=next(instants)).code == -signal.SIGKILL
    for kept in (0.0, 0.1, 0.37, 0.99, 1.0):
        partial.write_bytes(expected[: int(kept * len(expected))])
        assert faulty("nmt-generate", *words, "--resume", input=TEXT).code == 0
        assert (result.read_bytes(), partial.exists()) == (expected, False)
        result.unlink()


def test_a_training_run_killed_again_and_again_ends_like_an_uninterrupted_one(
    datasets: dict[str, Path], faulty: Faulty, tmp_path: Path
) -> None:
    often = (
        "--save-every",
        2,
        "--validate-every",
        5,
        "--valid-bleu",
        "--log-every",
        2,
        "--max-updates",
        24,
        "--ema",
        0.9,
    )
    words = (datasets["joined"], *TINY, *DROPOUT, *often, "--save-dir")
    run, straight = tmp_path / "run", tmp_path / "straight"
    assert faulty("nmt-train", *words, straight).code == 0
    instants = [*range(1, 12, 2), *range(12, 60, 6)]  # each operation of a save, and later ones
    killed = [faulty("nmt-train", *words, run, kill_at=instant).code for instant in instants]
    assert killed.count(-signal.SIGKILL) > 9
    assert {*killed} <= {0, -signal.SIGKILL}
    assert faulty("nmt-train", *words, run).code == 0
    assert_same_end(run, straight)
    assert_same_rows(run, straight)
    assert (run / "checkpoint_best.pt").stat().st_nlink == (straight / "checkpoint_best.pt").stat().st_nlink
    assert left(run) == []


def test_a_result_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure the name leads to the old result or to the whole new one."""
    flushed: list[tuple[int, bool]] = []
    fsync, result = os.fsync, tmp_path / "result"

    def noted(handle: int) -> None:
        flushed.append((os.fstat(handle).st_ino, result.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with staged_folder(result, lambda folder: False) as staging:
        (staging / "file").touch()
    folder, parent = result.stat().st_ino, tmp_path.stat().st_ino
    assert flushed == [((result / "file").stat().st_ino, False), (folder, False), (parent, True)]
    shutil.rmtree(result)
    for writing in (staged_file(result), resumable_file(result, False)):
        flushed.clear()
        with writing as file:
            file.write(b"content")
        assert flushed == [(result.stat().st_ino, False), (parent, True)]
        result.unlink()
