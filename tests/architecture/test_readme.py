"""The commands of README's tour work, on a text small enough for a test."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from make_corpus import english, make, ravic
from patience import PATIENCE
from repository import ROOT

SIZES = {"train": 300, "val": 8, "test_2016_flickr": 5}

# Smaller numbers for the test; everything else runs as written.
SMALLER = {"--destdir": "--vocab-size 200 --destdir", "--budget 10m": "--budget 10m --max-updates 4"}


def blocks(language: str) -> list[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"(?<!-->\n)^```{language}\n(.*?)^```$", readme, re.M | re.S)  # not those that are not run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name, sentences in make(SIZES).items():
        for language, say in (("en", english), ("de", ravic)):
            with gzip.open(tmp_path / f"data/{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{say(sentence)}\n" for sentence in sentences)
    return tmp_path


def test_the_readme_tour_runs(folder: Path) -> None:
    script = "".join(blocks("bash"))
    for number, smaller in SMALLER.items():
        assert number in script, f"the tour has changed: {number} is not in it"
        script = script.replace(number, smaller)
    here = {
        "PATH": os.pathsep.join([str(ROOT / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | here
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done

    tour = run("bash", "-euo", "pipefail", "-c", script)
    assert tour.stdout == ""
    assert len((folder / "test.de").read_text(encoding="utf-8").splitlines()) == SIZES["test_2016_flickr"]
    assert "BLEU|" in tour.stderr
    assert "chrF2|" in tour.stderr
    (from_python,) = blocks("python")
    assert run(sys.executable, "-c", from_python).stdout.startswith("['")


def test_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110
