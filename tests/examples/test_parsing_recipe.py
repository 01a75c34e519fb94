"""The parsing recipe: complete runs on a generated treebank, and reruns after changes."""

import fcntl
import gzip
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import PYTHON, ROOT, in_shell
from trees import read_trees

COMMANDS = ("preprocess", "train", "average", "generate")
TINY = (
    *("MODEL=--encoder-layers 1 --decoder-layers 1 --d-model 32 --d-ff 64 --heads 2 --norm pre", "DROPOUT=0"),
    *("SCHEDULE=--lr-schedule linear --lr 1e-2 --warmup-updates 20", "BATCH_TOKENS=400", "MAX_TOKENS=400"),
    *("UPDATES=90", "VALIDATE_EVERY=45", "AVERAGED=2", "BEAM=2"),
)
Make = Callable[..., str]


def sentence(draw: random.Random) -> str:
    """A random tree in Penn Treebank format, with functional tags and occasional traces."""

    def nominal(function: str = "") -> str:
        words = f"(DT {draw.choice(['the', 'a'])}) (NN {draw.choice(['dog', 'cat', 'king', 'tree'])})"
        if draw.random() < 0.3:
            return f"(NP{function} (NP {words}) (PP (IN near) {nominal()}))"
        return f"(NP{function} {words})"

    verb = draw.choice(["(VBD slept)", f"(VBD saw) {nominal()}", "(VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))"])
    return f"( (S {nominal('-SBJ-1')} (VP {verb}) (. .)))"


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """A folder with dev.mrg and train.mrg.gz, whose trees span several lines."""
    folder = tmp_path / 'the `tree` "bank" $$$b'
    folder.mkdir()
    draw = random.Random(1)
    with gzip.open(folder / "train.mrg.gz", "wt") as file:
        file.writelines(sentence(draw).replace("(VP", "\n    (VP") + "\n" for _ in range(200))
    (folder / "dev.mrg").write_text("".join(f"{sentence(draw)}\n" for _ in range(12)))
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The folder of a copy of the recipe."""
    return shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work")) / "parsing"


@pytest.fixture
def make(recipe: Path, treebank: Path, tmp_path: Path) -> Make:
    """Run make on the treebank; return its stdout and stderr."""
    (tmp_path / "bin").mkdir()
    for name, program in {**{f"nmt-{name}": in_shell(f"nmt-{name}") for name in COMMANDS}, "python": PYTHON}.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/bash\nexec {program} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {
        "PATH": f"{tmp_path / 'bin'}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "TREEBANK_DIR": str(treebank),
    }

    def run(*arguments: str, code: int = 0, settings: Sequence[str] = TINY) -> str:
        done = subprocess.run(
            ["make", *settings, *arguments],
            cwd=recipe,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    return run


def test_the_recipe_trains_parses_and_scores_and_a_second_run_does_nothing(
    make: Make, recipe: Path, treebank: Path
) -> None:
    output = make()
    assert float(re.findall(r"^F1 +([\d.]+)$", output, re.MULTILINE)[0]) > 30
    assert "train.mrg: 200 trees, each of which comes back" in output
    work = recipe / "work/treebank"
    gold, found = (list(read_trees(path)) for path in (treebank / "dev.mrg", work / "small/dev.trees"))
    assert [tree.words for tree in found] == [tree.words for tree in gold]
    (treebank / "test.mrg").write_text(sentence(random.Random(2)))
    assert "Sentences          1\n" in make("PART=test")
    assert "nmt-" not in make()


def test_extra_trees_are_mixed_with_the_treebank_in_a_separate_folder(make: Make, recipe: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.trees", tmp_path / "other.trees.gz"
    one.write_text("(ROOT (S (NP (NNP Rain)) (VP (VBZ falls))))\n" * 5)
    other.write_bytes(gzip.compress(b"(S1 (S (NP (NN Snow)) (VP (VBZ falls))))\n" * 3))
    dataset = "work/semi-supervised/data-bin/dataset.json"
    make(f"EXTRA={one}", dataset)
    text = recipe / "work/semi-supervised/text"
    assert (text / "extra.words").read_text() == "Rain falls\n" * 5
    output = make(f"EXTRA={one} {other}", dataset)
    assert (
        text / "extra.tree"
    ).read_text() == "(S (NP NNP )NP (VP VBZ )VP )S\n" * 5 + "(S (NP NN )NP (VP VBZ )VP )S\n" * 3
    assert "sentences 208" in output
    assert "nmt-" not in make(f"EXTRA={one} {other}", dataset)
    assert not (recipe / "work/treebank").exists()


def test_extra_trees_that_are_dated_in_the_future_repeat_no_step(make: Make, tmp_path: Path) -> None:
    extra, dataset = tmp_path / "extra.trees", "work/semi-supervised/data-bin/dataset.json"
    extra.write_text("(ROOT (S (NP (NNP Rain)) (VP (VBZ falls))))\n" * 5)
    tomorrow = time.time() + 24 * 3600
    os.utime(extra, (tomorrow, tomorrow))
    make(f"EXTRA={extra}", dataset)
    assert "nmt-" not in make(f"EXTRA={extra}", dataset)


def test_a_plain_file_takes_precedence_over_a_compressed_one(make: Make, recipe: Path, treebank: Path) -> None:
    (treebank / "train.mrg").write_text("(S (NN rain))\n")
    make("work/treebank/trees/train.mrg")
    assert (recipe / "work/treebank/trees/train.mrg").read_text() == "(S (NN rain))\n"


def test_trees_that_have_changed_replace_their_copies_and_others_keep_their_time(
    make: Make, recipe: Path, treebank: Path
) -> None:
    copies = [recipe / f"work/treebank/trees/{name}.mrg" for name in ("train", "dev")]
    names = [str(copy.relative_to(recipe)) for copy in copies]
    make(*names)
    before = [copy.stat().st_mtime_ns for copy in copies]
    assert "taken from" not in make(*names)
    (treebank / "dev.mrg").write_text("(S (NN rain))\n")
    assert make(*names).count("taken from") == 1
    assert copies[1].read_text() == "(S (NN rain))\n"
    assert copies[0].stat().st_mtime_ns == before[0]
    assert "dev.mrg: not in TREEBANK_DIR=elsewhere: set TREEBANK_DIR" in make("TREEBANK_DIR=elsewhere", *names, code=2)
    make("TREEBANK_DIR=", *names)  # the copies are used
    assert copies[1].read_text() == "(S (NN rain))\n"
    copies[1].unlink()
    make(*names)
    assert copies[1].read_text() == "(S (NN rain))\n"
    (treebank / "dev.mrg").write_text("(S (NN hail))\n")
    make(f"TREEBANK_DIR={str(treebank).replace('$', '$$')}", *names)
    assert copies[1].read_text() == "(S (NN hail))\n"


def test_trees_that_were_changed_by_hand_are_taken_again(make: Make, recipe: Path) -> None:
    copy = recipe / "work/treebank/trees/train.mrg"
    make("work/treebank/trees/train.mrg")
    before = copy.read_bytes()
    copy.write_bytes(before[:100])
    assert "changed, or of another treebank" in make("TREEBANK_DIR=", "work/treebank/trees/train.mrg", code=2)
    make("work/treebank/trees/train.mrg")
    assert copy.read_bytes() == before


def contents(work: Path) -> dict[Path, bytes]:
    """The files, without the lists of makes that use them."""
    return {path: path.read_bytes() for path in work.rglob("*") if path.is_file() and path.suffix != ".users"}


@pytest.mark.parametrize("in_use", ["treebank.command", "lexicon.command"])
def test_no_trees_and_no_lexicon_are_replaced_while_a_step_runs(
    make: Make, recipe: Path, treebank: Path, in_use: str
) -> None:
    work = recipe / "work/treebank"
    make("work/treebank/text/dev.words")
    (treebank / "dev.mrg").write_text("(S (NN rain))\n")
    before = contents(work)
    with (work / in_use).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        changed = {"treebank.command": (), "lexicon.command": ("TREEBANK_DIR=", "KNOWN_WORDS=5")}
        assert "a step that needs work/treebank/" in make(*changed[in_use], "work/treebank/text/dev.words", code=2)
    assert contents(work) == before


def test_a_step_that_uses_another_lexicon_than_its_make_is_refused(make: Make, recipe: Path) -> None:
    make("work/treebank/text/dev.words")
    python = recipe.parent.parent / "bin/python"
    real = python.read_text()
    command = recipe / "work/treebank/lexicon.command"
    other = f'[[ "$*" != *" nmt-preprocess "* ]] || echo other > {command}\n'
    python.write_text(real.replace("\n", f"\n{other}", 1))
    refused = "lexicon.command: another make has begun this step with other variables"
    assert refused in make("work/treebank/data-bin/dataset.json", code=2)
    python.write_text(real)
    make("work/treebank/data-bin/dataset.json")


def test_trees_of_two_treebanks_are_not_mixed(make: Make, recipe: Path, treebank: Path) -> None:
    (treebank / "test.mrg").write_text("(S (NN rain))\n")
    asked = [f"work/treebank/trees/{name}.mrg" for name in ("train", "dev", "test")]
    make("PART=test", *asked)
    (treebank / "test.mrg").unlink()
    (treebank / "dev.mrg").write_text("(S (NN snow))\n")
    make(*asked[:2])
    refused = "test.mrg: missing, changed, or of another treebank: set TREEBANK_DIR"
    assert refused in make("TREEBANK_DIR=", "PART=test", *asked, code=2)
    (treebank / "train.mrg.gz").unlink()
    (treebank / "dev.mrg").write_text("(S (NN hail))\n")
    make(*asked[:2], code=2)
    assert (recipe / asked[1]).read_text() == "(S (NN snow))\n"


def test_extra_trees_that_are_replaced_by_older_ones_are_mixed_again(make: Make, recipe: Path, tmp_path: Path) -> None:
    extra, copy = tmp_path / "e.mrg", "work/semi-supervised/trees/extra.mrg"
    for text in ("(S (NN rain))\n", "(S (NN snow))\n"):
        extra.write_text(text)
        os.utime(extra, (0, 0))
        make(f"EXTRA={extra}", copy)
        assert (recipe / copy).read_text() == text
    assert "special to make or the shell" in make("EXTRA=it's.mrg", copy, code=2)
    assert "EXTRA: there is no file none.mrg: names cannot have spaces" in make("EXTRA=none.mrg", copy, code=2)


def test_a_missing_treebank_is_reported(make: Make, recipe: Path) -> None:
    assert "dev.mrg: not in TREEBANK_DIR=elsewhere: set TREEBANK_DIR" in make("TREEBANK_DIR=elsewhere", code=2)
    assert "missing, changed, or of another treebank: set TREEBANK_DIR" in make("TREEBANK_DIR=", code=2)
    assert not list((recipe / "work").rglob("*.mrg"))


def test_a_malformed_treebank_is_reported_with_its_line_and_the_next_call_resumes(
    make: Make, recipe: Path, treebank: Path
) -> None:
    whole = (treebank / "dev.mrg").read_text()
    (treebank / "dev.mrg").write_text(whole.replace("(", "", 1))
    dev = "work/treebank/text/dev.words"
    assert "linearize.py: work/treebank/trees/dev.mrg, line 1: " in make(dev, code=2)
    assert not (recipe / dev).exists()
    (treebank / "dev.mrg").write_text(whole)
    make(dev)
    assert len((recipe / dev).read_text().splitlines()) == 12


@pytest.mark.parametrize("size", ["", "Paper", "../x", "small paper"])
def test_an_unknown_size_is_refused(size: str, make: Make, recipe: Path) -> None:
    assert f"no model SIZE={size}: use small or paper" in make(settings=[f"SIZE={size}"], code=2)
    assert not (recipe / "work").exists()


def test_size_paper_has_the_settings_of_the_paper(make: Make) -> None:
    shown = make("-n", settings=["SIZE=paper"])
    assert "--encoder-layers 4 --decoder-layers 4 --d-model 1024 " in shown
    assert "--dropout 0.2 --batch-tokens 25000 --max-tokens 4096 --lr-schedule paper --lr-scale 0.5 " in shown
    assert "--beam 21 --nbest 1 --length-penalty 0.3 --max-len-a 1 --max-len-b 300" in shown
    assert "lexicon.py 16000 " in shown
