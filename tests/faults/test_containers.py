"""Commands run in containers: any user id without a name, no HOME, a read-only working folder, a strict umask."""

import os
import shutil
import stat
import subprocess
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


@pytest.fixture
def image(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The folder of an image, and where a container sees it through overlayfs, whose writable layer is a tmpfs."""
    mounted = tmp_path / "overlay"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], capture_output=True, check=False).returncode:
        pytest.skip("this system mounts no file systems")
    try:
        layers = {name: mounted / name for name in ("lowerdir", "upperdir", "workdir")}
        seen = mounted / "seen"
        for folder in (*layers.values(), seen):
            folder.mkdir()
        options = ",".join(f"{name}={folder}" for name, folder in layers.items())
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(seen)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this system has no overlayfs")
        try:
            yield layers["lowerdir"], seen
        finally:
            subprocess.run(["umount", str(seen)], check=True)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.parametrize("command", ["nmt-preprocess", "nmt-export"])
def test_a_folder_that_lies_in_the_image_of_a_container_is_replaced(
    command: str, command_lines: dict[str, list[object]], faulty: Faulty, image: tuple[Path, Path], tmp_path: Path
) -> None:
    words, (layer, seen) = command_lines[command], image
    assert faulty(command, *words).code == 0
    expected = {path.name: path.read_bytes() for path in (tmp_path / "result").iterdir()}
    shutil.copytree(tmp_path / "result", layer / "result")
    again = [seen / "result" if word == tmp_path / "result" else word for word in words]
    done = faulty(command, *again)
    assert done.code == 0, done.output
    assert {path.name: path.read_bytes() for path in (seen / "result").iterdir()} == expected
    assert [path.name for path in seen.iterdir()] == ["result"]


def test_a_file_that_is_mounted_from_the_host_gets_the_result(
    command_lines: dict[str, list[object]], faulty: Faulty, tmp_path: Path
) -> None:
    """As by `docker -v FILE:FILE`: such a file cannot be replaced by a rename."""
    host, result = tmp_path / "host", tmp_path / "result"
    host.write_bytes(bytes(99_999))
    result.touch()
    if subprocess.run(["mount", "--bind", str(host), str(result)], capture_output=True, check=False).returncode:
        pytest.skip("this system mounts no file systems")
    try:
        done = faulty("nmt-generate", *command_lines["nmt-generate"], input=TEXT)
    finally:
        subprocess.run(["umount", str(result)], check=True)
    assert done.code == 0, done.output
    mounted = host.read_bytes()
    assert faulty("nmt-generate", *command_lines["nmt-generate"], input=TEXT).code == 0
    assert mounted == result.read_bytes()
