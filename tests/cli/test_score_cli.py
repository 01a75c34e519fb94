"""nmt-score as it is called."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import BIN

COMMAND = [sys.executable, str(BIN / "nmt-score")]
LINES = ["Ein E-Mail-Konto, das ist gut.", "", "Der Hund läuft durch den Schnee."]


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "reference.de"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def score(*arguments: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE)


def test_all_scores_come_with_signature_and_use_from_a_file_or_a_pipe(reference: Path) -> None:
    done = score(reference, "--reference", reference, "-t", "de")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) = 100\.0", done.stdout, re.MULTILINE) == [
        *(name for name in done.stdout.split() if name.startswith(("BLEU|", "chrF2|")))
    ]
    assert [line.startswith("    ") for line in done.stdout.splitlines()] == [False, True] * 5
    piped = score("--reference", reference, "-t", "de", stdin=reference.read_text(encoding="utf-8"))
    assert (piped.returncode, piped.stdout) == (0, done.stdout)


def test_missing_lines_are_refused(reference: Path) -> None:
    done = score("--reference", reference, "-t", "de", stdin="Ein Hund.\n")
    assert done.returncode == 2
    assert done.stderr == f"nmt-score: stdin has 1 line and {reference} has 3: give a reference for each line\n"
    reference.write_text("")
    done = score("--reference", reference, "-t", "de")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to score" in done.stderr


def test_a_language_without_a_name_is_refused(reference: Path) -> None:
    done = score("--reference", reference, "-t", "")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "nmt-score: --target-lang is missing\n")


def test_subwords_are_warned_of(reference: Path) -> None:
    pieces = "Ein E@@ -@@ Mail@@ -@@ Konto, das ist gut.\n\nDer Hund läuft durch den Schnee.\n"
    done = score("--reference", reference, "-t", "de", stdin=pieces)
    assert done.returncode == 0
    assert "in 1 of 3 lines of the translation" in done.stderr
    assert "of the reference" not in done.stderr
