"""The recipes: their commands and settings, the Makefile that calls them, and complete runs of some."""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_corpus import english, make, ravic
from patience import PATIENCE
from repository import ROOT
from steps import OUTPUT_WORDS
from variables import variables

from nmtkit.cli.start import load_command
from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train
from nmtkit.model.architectures import make_model
from nmtkit.training.cost import training_flops

EXAMPLES = ROOT / "examples"
RECIPES = sorted(path.stem for path in EXAMPLES.glob("*.py") if "with Recipe(" in path.read_text(encoding="utf-8"))
NAMES = "preprocess|train|average|generate|score|export"


def listed(recipe: str, *arguments: str) -> list[str]:
    """The commands of a recipe."""
    script = [sys.executable, str(EXAMPLES / f"{recipe}.py"), "--list", *arguments]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def options_of(command: str, line: str) -> list[str]:
    """The words after nmt-COMMAND in a line, without redirections."""
    return shlex.split(re.sub(r" (2>&1|>|\|) .*", "", line.partition(f"nmt-{command} ")[2]))


def parsed(flags: list[str]) -> dict[str, Any]:
    """The options of nmt-train by name."""
    with nmt_train.make_context("nmt-train", flags) as context:
        choose_model(context.params)
        return context.params


@pytest.mark.parametrize(
    "recipe", [*RECIPES, "table3 POSITIONS=1", "parsing SIZE=paper EXTRA=a.mrg"], ids=lambda recipe: recipe.split()[0]
)
def test_all_commands_of_a_recipe_have_valid_options(recipe: str) -> None:
    found = [(name, line) for line in listed(*recipe.split()) for name in re.findall(rf"\bnmt-({NAMES}) ", line)[:1]]
    assert {"preprocess", "train", "average", "generate"} <= {name for name, _ in found}
    for name, line in found:
        load_command(name).make_context(f"nmt-{name}", options_of(name, line))


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_seed_of_a_recipe_has_its_own_runs_and_each_command_its_own_output(recipe: str) -> None:
    has_seeds = "SEEDS=" in (EXAMPLES / f"{recipe}.py").read_text(encoding="utf-8")
    one, two = (listed(recipe, *([seeds] if has_seeds else [])) for seeds in ("SEEDS=1", "SEEDS=1 2"))
    shared = re.compile("/grid/|--save-dir shared/")
    runs = [sum("nmt-train" in line and not shared.search(line) for line in lines) for lines in (one, two)]
    assert runs[1] == (1 + has_seeds) * runs[0]
    words = [word for line in two for word in shlex.split(line)]
    outputs = [name for flag, name in pairwise(words) if flag in OUTPUT_WORDS]
    assert sorted(outputs) == sorted({*outputs})


@pytest.mark.parametrize("recipe", RECIPES)
def test_make_has_a_target_for_each_recipe(recipe: str) -> None:
    assert f"$(call recipe,{recipe}.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_texts_of_the_multilingual_recipe_are_joined_at_line_ends_also_without_a_last_newline(
    tmp_path: Path,
) -> None:
    for folder in ("multi30k", "all"):
        (tmp_path / folder).mkdir()
    for side, text in (("en", b"one\ntwo"), ("de", b"eins\nzwei")):
        (tmp_path / f"multi30k/train.{side}.gz").write_bytes(gzip.compress(text))
    for command in listed("multilingual", "DIRECTIONS=en-de de-en")[:2]:
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=PATIENCE)
    assert (tmp_path / "all/train.source").read_text() == "one\ntwo\neins\nzwei\n"
    assert (tmp_path / "all/train.target").read_text() == "eins\nzwei\none\ntwo\n"


def made(recipe: str, folder: Path, words: str, *arguments: str) -> None:
    """Run the commands of a recipe that have these words."""
    for command in listed(recipe, *arguments):
        if re.search(words, command):
            output = folder / command.split("> ")[-1]
            output.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["bash", "-c", command], cwd=folder, check=True, timeout=PATIENCE)


def test_the_monolingual_text_of_backtranslation_is_that_of_the_pairs_that_are_not_genuine(tmp_path: Path) -> None:
    (tmp_path / "multi30k/text").mkdir(parents=True)
    for side in ("en", "de"):
        (tmp_path / f"multi30k/text/train.{side}.gz").write_bytes(gzip.compress(b"1\n2\n3\n4\n5\n"))
    made("backtranslation", tmp_path, "awk", "CORPORA=multi30k", "PAIRS=2")
    for name, text in (("genuine/train.en", "1\n2\n"), ("genuine/train.de", "1\n2\n"), ("monolingual.de", "3\n4\n5\n")):
        assert (tmp_path / "multi30k" / name).read_text() == text


def test_diversification_learns_from_the_text_and_from_the_translations_of_both_sides(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for side in ("en", "de"):
        (tmp_path / f"text/train.{side}.gz").write_bytes(gzip.compress(f"a {side}@@ c\n".encode()))
    made("diversification", tmp_path, r"gzip.*train\.", "SEEDS=1")
    assert (tmp_path / "seed-1/forward/train.en").read_text() == "a enc\n"
    assert (tmp_path / "seed-1/reverse/train.de").read_text() == "a dec\n"
    *_, last = (line for line in listed("diversification", "SEEDS=1") if line.startswith("nmt-preprocess"))
    assert re.findall(r"--trainpref (\S+)", last) == ["joined/train", "seed-1/forward/train", "seed-1/reverse/train"]


@pytest.mark.parametrize(
    ("recipe", "commands"),
    [
        (
            "table3 POSITIONS=1 SHORT=9",
            [
                "--destdir short-9/data-bin --vocab-from data-bin --max-length 9",
                "nmt-train data-bin --save-dir seed-1/e_learned/",
                "nmt-train short-9/data-bin --save-dir short-9/seed-1/base/",
                "by_length text/val.en.gz text/val.de.gz de 9 sinusoids=short-9/seed-1/base learned=short-9/seed-1/e_l",
            ],
        ),
        (
            "parsing EXTRA=a.mrg",
            [
                "lexicon 32000 trees/train.mrg.gz trees/extra.mrg",
                "--trainpref text/train --trainpref text/extra --validpref text/dev",
            ],
        ),
        (
            "distillation CORPORA=multi30k SEEDS=1",
            [
                "nmt-train multi30k/seed-1/taught/data-bin --save-dir multi30k/seed-1/student/",
                "--dataset multi30k/seed-1/taught/data-bin --output multi30k/seed-1/student/shortlist.bin --force",
            ],
        ),
        (
            "browser_student SEEDS=2",
            [
                "nmt-train data-bin --save-dir shared/teacher/checkpoints --seed 1 ",
                "nmt-train shared/taught/data-bin --save-dir seed-2/student/checkpoints --seed 2 --arch student_tiny ",
                "--shortlist seed-2/student/shortlist.bin --int8 text/val.en.gz --page --output seed-2/browser-int8",
            ],
        ),
    ],
)
def test_each_model_of_a_recipe_learns_its_own_text(recipe: str, commands: list[str]) -> None:
    shown = "\n".join(listed(*recipe.split()))
    assert [command for command in commands if command not in shown] == []


def test_arguments_precede_the_environment_and_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"SEEDS": "5", "UPDATES": "7", "TEXT_DIR": "my text", "WORK": "work"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["recipe.py", "SEEDS=1 1 2"])
    found = variables(SEEDS=[3], UPDATES=4, TEXT_DIR="", SIZE=("small", "paper"))
    folders = {"WORK": str(tmp_path / "work"), "TEXT_DIR": str(tmp_path / "my text")}
    assert vars(found) == {"SEEDS": [1, 2], "UPDATES": 7, "SIZE": "small", **folders}


@pytest.mark.parametrize("argument", ["SIZE=huge", "MODELS=a c", "MODELS=", "SEEDS=", "SEEDS=1 x", "UPDATES=-1"])
def test_a_value_that_a_variable_does_not_have_is_refused(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recipe.py", argument])
    with pytest.raises(SystemExit) as refused:
        variables(SIZE=("small", "paper"), MODELS=["a", "b"], SEEDS=[1], UPDATES=4)
    assert refused.value.code == 2


def test_an_unknown_row_of_table3_is_refused() -> None:
    script = [sys.executable, str(EXAMPLES / "table3.py"), "--list", "ROWS=base z"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "no row z: use base, a_h1" in done.stderr) == (1, True)


def test_make_replaces_only_an_environment_that_it_made_and_only_by_a_python_that_is_new_enough(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").mkdir()
    for name in ("setup.py", "constraints.txt"):
        (tmp_path / name).touch()
    shown = [subprocess.run(["make", "-n", "install"], cwd=tmp_path, capture_output=True, text=True).stdout]
    (tmp_path / ".venv/installed-by-another").touch()
    shown += [subprocess.run(["make", "-n", "install"], cwd=tmp_path, capture_output=True, text=True).stdout]
    assert ["rm -rf .venv" in commands.splitlines() for commands in shown] == [False, True]
    assert subprocess.run(["make", "install", "PYTHON=false"], cwd=tmp_path, capture_output=True).returncode == 2
    assert (tmp_path / ".venv/installed-by-another").exists()


def test_make_passes_variables_of_its_command_line_and_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\n[ "$1" = -c ] || printf "%s|" "$1" "$MULTI30K_DIR" "$SEEDS" "${WORK-unset}"\n')
    python.chmod(0o755)
    for name in ("setup.py", "constraints.txt", ".venv/installed-by-python3"):
        (tmp_path / name).touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"SEEDS": "1 2", "WORK": "the cluster's"}
    for given, work in ((), "unset"), (("WORK=own folder",), "own folder"):
        command = ["make", "--no-print-directory", "multi30k-en-de", "MULTI30K_DIR=my text", *given]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout == f"examples/multi30k.py|my text|1 2|{work}|", done.stderr
    (tmp_path / ".venv/installed-by-python3").write_text("elsewhere\n")
    moved = subprocess.run(["make", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (moved.returncode, ".venv was made in another folder" in moved.stderr) == (2, True)


@pytest.mark.parametrize(
    ("pair", "size", "expected"),
    [
        ("en-de", "base", "--dropout 0.1 --max-updates 100000 --keep-last 5 --vocab-size 37000"),
        ("en-de", "big", "--dropout 0.3 --max-updates 300000 --keep-last 20 --vocab-size 37000"),
        ("en-fr", "base", "--dropout 0.1 --max-updates 100000 --keep-last 5 --vocab-size 32000"),
        ("en-fr", "big", "--dropout 0.1 --max-updates 300000 --keep-last 20 --vocab-size 32000"),
    ],
)
def test_the_settings_of_wmt14_are_those_of_the_paper(pair: str, size: str, expected: str) -> None:
    shown = " ".join(listed("wmt14", f"PAIR={pair}", f"SIZE={size}", "GPUS=1"))
    same = "--label-smoothing 0.1 --warmup-updates 4000 --batch-tokens 25000 --beam 4 --length-penalty 0.6"
    for option in re.findall(r"--\S+ \S+", f"{expected} {same} --arch transformer_{size}"):
        assert f" {option} " in shown, option


def test_wmt14_has_two_more_corpora_in_french_and_the_micro_batches_and_machines_that_are_given() -> None:
    german, french = (" ".join(listed("wmt14", f"PAIR={pair}", "GPUS=1")) for pair in ("en-de", "en-fr"))
    corpora = [re.findall(r"--trainpref \S+/text/(\S+)", shown) for shown in (german, french)]
    assert corpora[0] == ["europarl", "commoncrawl", "news-commentary"]
    assert corpora[1] == [*corpora[0], "un", "giga"]
    assert "--max-tokens" not in german
    *_, command, _ = listed("wmt14", "NODES=2", "GPUS=4", "MAX_TOKENS=1664")
    assert re.match(r"torchrun .*--nnodes 2 .*--nproc-per-node 4 .*nmt-train .* --max-tokens 1664 ", command)


def test_an_update_of_wmt14_is_the_same_on_any_number_of_gpus() -> None:
    alone, among = ([line for line in listed("wmt14", f"GPUS={gpus}") if "nmt-train" in line] for gpus in (1, 8))
    assert among == [f"torchrun --no-python --standalone --nproc-per-node 8 --max-restarts 3 {line}" for line in alone]


def test_the_models_of_table2_have_equal_parameters_and_cost_within_5_percent() -> None:
    lines = [line for line in listed("table2", "CORPORA=multi30k", "SEEDS=1") if line.startswith("nmt-train")]
    configs = [parsed(options_of("train", line))["model"] for line in lines]
    lengths = np.full(10, 14)
    parameters = [sum(weight.numel() for weight in make_model(config, 6000, 6000).parameters()) for config in configs]
    costs = [training_flops(config, 6000, lengths, lengths) for config in configs]
    assert len(configs) == 3
    assert max(parameters) < 1.05 * min(parameters)
    assert max(costs) < 1.05 * min(costs)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl, which downloads the archives, is not there")
def test_wmt14_runs_from_download_to_scores_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        script = [
            sys.executable,
            str(EXAMPLES / "wmt14.py"),
            f"WORK={tmp_path}/my work",
            "SMOKE=1",
            "GPUS=0",
            *arguments,
        ]
        done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, work = run(), tmp_path / "my work/smoke/en-de"
    assert first.index("The plan") < first.index("nmt-preprocess") < first.index("nmt-train")
    report = (work / "base/scores.txt").read_text(encoding="utf-8")
    assert [name.split("|")[4] for name in re.findall(r"^(?:BLEU|chrF2)\|\S+", report, re.MULTILINE)] == [
        *("tok:moses-de", "tok:moses-de-compounds", "tok:moses-de-compounds-quotes", "tok:13a", "nc:6")
    ]
    assert re.search(r"the paper: 100000 updates in 12 h on 8 × P100 +3\.3e\+18", first)
    sizes = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in work.glob("text/*.en")}
    assert sizes == dict.fromkeys(("europarl.en", "commoncrawl.en", "news-commentary.en"), 400) | dict.fromkeys(
        ("newstest2013.en", "newstest2014.en"), 21
    )
    assert (work / "text/newstest2014.en").read_text(encoding="utf-8").endswith("\nR&D <today>\n")
    shutil.rmtree(tmp_path / "my work/smoke/archives")  # texts that are done need them no more
    second = run(f"DATA_DIR={tmp_path}/moved")
    assert first.endswith(second)
    assert "nmt-preprocess" not in second
    again = run("BEAM=2")
    assert ("nmt-generate" in again, "nmt-average" in again) == (True, False)


@pytest.mark.slow
def test_multi30k_runs_to_its_report(tmp_path: Path) -> None:
    splits = make({"train": 300, "val": 12, "test_2016_flickr": 12})
    (tmp_path / "my text").mkdir()
    for name, sentences in splits.items():
        for side, say in (("en", english), ("de", ravic)):
            packed = subprocess.run(["gzip"], input="".join(f"{say(one)}\n" for one in sentences).encode(), stdout=-1)
            (tmp_path / f"my text/{name}.{side}.gz").write_bytes(packed.stdout)
    given = [f"WORK={tmp_path}/work", f"MULTI30K_DIR={tmp_path}/my text", "UPDATES=8", "VALIDATE_EVERY=4", "AVERAGED=1"]
    script = [sys.executable, str(EXAMPLES / "multi30k.py"), *given, "VOCAB_SIZE=300", "SEEDS=1 2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "work/report.md").read_text(encoding="utf-8")
    assert done.stdout.endswith(report)
    for row in (r"seed-1 \| \d+\.\d\d \| ", r"seed-2 \| 8 \| ", r"mean ± standard deviation \| \d+\.\d\d ± \d"):
        assert re.search(rf"^\| {row}", report, re.MULTILINE)
