"""nmt-score as it is called."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import BIN
from terminals import on_terminal

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


def test_all_scores_are_printed_with_signature_and_use_for_a_file_or_a_pipe(reference: Path) -> None:
    done = score(reference, "--reference", reference, "-t", "de")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\S+) = 100\.0", done.stdout, re.MULTILINE) == [
        *(name for name in done.stdout.split() if name.startswith(("BLEU|", "chrF2|")))
    ]
    assert [line.startswith("    ") for line in done.stdout.splitlines()] == [False, True] * 5
    piped = score("--reference", reference, "-t", "de", stdin=reference.read_text(encoding="utf-8"))
    assert (piped.returncode, piped.stdout) == (0, done.stdout)


def test_missing_hypothesis_lines_and_empty_files_are_refused(reference: Path) -> None:
    done = score("--reference", reference, "-t", "de", stdin="Ein Hund.\n")
    assert done.returncode == 2
    message = f"stdin has 1 line and {reference} has 3: stdin has no line 2; the files must correspond line by line"
    assert done.stderr == f"nmt-score: {message}\n"
    reference.write_text("")
    done = score("--reference", reference, "-t", "de")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to score" in done.stderr
    done = score("--reference", reference)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "nmt-score: --target-lang is missing\n")


def test_subword_marks_give_a_warning(reference: Path) -> None:
    done = score("--reference", reference, "-t", "de", stdin="Ein E@@ -@@ Mail@@ -@@ Konto\n\nDer Hund.\n")
    assert (done.returncode, "in 1 of 3 lines of stdin" in done.stderr) == (0, True)


@pytest.mark.parametrize(("pair", "target"), [("en-zh", "zh"), ("jpn-eng", "eng")])
def test_a_pair_of_languages_is_refused(pair: str, target: str, reference: Path) -> None:
    done = score("--reference", reference, "-t", pair)
    message = f"--target-lang {pair} is a pair of languages: give the second, --target-lang {target}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"nmt-score: {message}\n")


@pytest.mark.parametrize("language", ["de-at", "zh_CN", "deu_Latn"])
def test_languages_with_a_region_or_script_are_scored(language: str, reference: Path) -> None:
    assert score("--reference", reference, "-t", language, stdin=reference.read_text()).returncode == 0


@pytest.mark.parametrize("source", ["command line", "--config"])
def test_several_systems_and_references_are_compared(reference: Path, tmp_path: Path, source: str) -> None:
    better, worse, second = (tmp_path / name for name in ("better.de", "worse.de", "second.de"))
    better.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    worse.write_text("Ein Konto.\n\nDie Katze läuft durch den Schnee.\n", encoding="utf-8")
    second.write_text("Eins.\n\nDie Katze schläft.\n", encoding="utf-8")
    if source == "--config":
        config = tmp_path / "score.json"
        names = {"translation": [str(worse), str(better)], "reference": [str(reference), str(second)]}
        config.write_text(json.dumps({**names, "target-lang": "cs", "paired_bs": True}))
        done = score("--config", config)
    else:
        files = (worse, better, "--reference", reference, "--reference", second)
        done = score(*files, "-t", "cs", "--paired-bs")
    assert done.returncode == 0, done.stderr
    signature, _, baseline, other, *_ = done.stdout.splitlines()
    assert signature.startswith("BLEU|nrefs:2|bs:1000|seed:12345|")
    assert (baseline.split()[0], other.split()[0]) == (str(worse), str(better))
    assert (" p = " in baseline, " p = " in other) == (False, True)


def test_a_terminal_shows_the_scores_as_a_table(reference: Path) -> None:
    shown = on_terminal([*COMMAND[1:], str(reference), "--reference", str(reference), "-t", "cs"], stdout=True)
    assert shown.code == 0
    assert re.search(r"│ BLEU 13a │ 100\.00 +│", shown.text)
    assert "BLEU|nrefs:1|" in shown.text


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--paired-bs", "--confidence"], "--confidence has no effect"), (["--paired-ar"], "--paired-bs")],
)
def test_options_without_effect_and_unknown_ones_are_refused(reference: Path, options: list[object], word: str) -> None:
    done = score(reference, "--reference", reference, "-t", "de", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert word in done.stderr
