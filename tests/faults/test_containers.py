"""Commands run in containers: any user id without a name, no HOME, a read-only working folder, a strict umask."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import TEXT, Faulty

USER = 54321  # has no entry in /etc/passwd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


@pytest.fixture
def volume() -> Iterator[Path]:
    """A folder of the user of the container, which pytest's own folders are closed to."""
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("command", ["nmt-average", "nmt-export", "nmt-generate", "nmt-train"])
def test_a_command_runs_as_a_user_without_name_or_home_in_a_folder_it_cannot_write(
    command: str, command_lines: dict[str, list[object]], faulty: Faulty, volume: Path
) -> None:
    words = list(command_lines[command])
    for number, word in enumerate(words):
        if not isinstance(word, Path):
            continue
        if word.name == "result":
            words[number] = volume / "result"
        else:
            (shutil.copytree if word.is_dir() else shutil.copy)(word, volume / word.name)
            words[number] = volume / word.name
    done = faulty(command, *words, input=TEXT, user=USER, umask=0o077, cwd="/")
    assert done.code == 0, done.output
    status = (volume / "result").stat()
    assert status.st_uid == USER
    assert stat.S_IMODE(status.st_mode) & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_named_in_one_line(
    command_lines: dict[str, list[object]], tiny_checkpoint: Path, faulty: Faulty, volume: Path
) -> None:
    shutil.copy(tiny_checkpoint, volume / "a.pt")
    for command, words in (
        ("nmt-average", [volume / "a.pt", "--output", "/etc/result"]),
        ("nmt-generate", ["--checkpoint", volume / "a.pt", "--output", "/etc/result"]),
    ):
        refused = faulty(command, *words, input=TEXT, user=USER)
        assert (refused.code, "/etc/result" in refused.last_line) == (2, True), refused.output
    assert not Path("/etc/result").exists()
