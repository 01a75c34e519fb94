"""dates.py: which files of a work folder are dated in the future."""

import os
import subprocess
import sys
import time
from pathlib import Path

import dates
import pytest
from patience import PATIENCE
from repository import ROOT


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a folder of its own, a link to another one, a broken link, and a loop of links."""
    for folder in ("work/run", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "scores.txt").touch()
    (tmp_path / "work/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "work/broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "work/run/loop").symlink_to(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("name", ["run/scores.txt", "linked/scores.txt", "run"])
@pytest.mark.parametrize(("ahead", "is_refused"), [(30, False), (90, True)])
def test_files_ahead_are_waited_for_or_refused_also_in_linked_folders(
    name: str,
    ahead: int,
    is_refused: bool,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    now = time.time()
    os.utime(work / name, (now + ahead, now + ahead))
    dates.main(work)
    out, err = capfd.readouterr()
    found = f"{work / name} is dated "
    if is_refused:
        assert (out.startswith(found), err, waited) == (True, "", [])
    else:
        assert (out, err.startswith(found), len(waited)) == ("", True, 1)
        assert ahead - 10 < waited[0] <= ahead


def test_without_a_file_in_the_future_nothing_is_said(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in (work, tmp_path / "missing"):
        dates.main(folder)
    assert capfd.readouterr() == ("", "")


def test_a_name_that_the_locale_cannot_write_is_printed(work: Path) -> None:
    odd = os.fsencode(work) + b"/bad\xff"
    Path(os.fsdecode(odd)).touch()
    future = time.time() + 9999
    os.utime(odd, (future, future))
    program = [sys.executable, "-X", "utf8=0", str(ROOT / "examples/dates.py"), str(work)]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(program, capture_output=True, env=strict, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(odd + b" is dated ")
