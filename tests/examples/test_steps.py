"""Recipes: which commands run again after a change, a kill or a fault."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import ROOT

EXAMPLES = ROOT / "examples"
RECIPE = r"""
from steps import Recipe
from variables import variables

v = variables(TEXT_DIR="", WORDS=2, RATE=1, UPDATES=3, SPEED="")
with Recipe("demo", v.WORK) as run:
    for name in ("train", "test"):
        run.file(f"text/{name}.en", f"{v.TEXT_DIR}/{name}.en" if v.TEXT_DIR else "", "set TEXT_DIR")
    run(f"mkdir -p data-bin; head -n {v.WORDS} text/train.en > data-bin/words")
    run(
        f"train=1; : --save-dir seed-1/checkpoints --rate {v.RATE} data-bin; mkdir -p seed-1/checkpoints; "
        "echo update >> seed-1/checkpoints/log; [ ! -e stop ] || exec sleep 60;",
        resumable=f": --max-updates {v.UPDATES};", machine=f": {v.SPEED}",
    )
    run("cat seed-1/checkpoints/log text/test.en > report.md")
    run.show("report.md")
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder, whose name has spaces and quotes, with a recipe and its text."""
    folder = tmp_path / "it's a $folder"
    (folder / "text").mkdir(parents=True)
    for name in ("train", "test"):
        (folder / f"text/{name}.en").write_text(f"{name} a\n{name} b\n{name} c\n")
    (folder / "recipe.py").write_text(RECIPE)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "recipe.py", "WORK=work", *arguments]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(EXAMPLES)}


@pytest.fixture
def run(folder: Path) -> Run:
    def run(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command(*arguments), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == code, done.stderr
        return done

    return run


def commands(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The first words of the commands that a run has called, and of its copies."""
    names = ("copying", "mkdir", "train=1", "cat")
    return [line.split()[0].strip(";") for line in done.stdout.splitlines() if line.startswith(names)]


ALL = ["copying", "copying", "mkdir", "train=1", "cat"]


def test_a_second_run_only_shows_the_result(run: Run, folder: Path) -> None:
    first, second = run("TEXT_DIR=text"), run("TEXT_DIR=text")
    assert (commands(first), commands(second)) == (ALL, [])
    assert second.stdout == (folder / "work/report.md").read_text() == "update\ntest a\ntest b\ntest c\n"


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        (["WORDS=1"], ["mkdir", "train=1", "cat"]),
        (["RATE=2"], ["train=1", "cat"]),
        (["SPEED=fast"], []),
        (["UPDATES=4"], ["train=1", "cat"]),
    ],
)
def test_a_changed_variable_repeats_what_depends_on_it_and_nothing_else(
    change: list[str], repeated: list[str], run: Run
) -> None:
    run("TEXT_DIR=text")
    assert commands(run("TEXT_DIR=text", *change)) == repeated


def test_text_is_compared_by_content_and_kept_if_no_folder_is_given(run: Run, folder: Path) -> None:
    run("TEXT_DIR=text")
    os.utime(folder / "text/train.en")
    (folder / "text").rename(folder / "moved")
    assert commands(run("TEXT_DIR=moved")) == commands(run()) == []
    (folder / "moved/test.en").write_text("other\n")
    assert commands(run("TEXT_DIR=moved")) == ["copying", "cat"]


def test_text_that_is_missing_is_named_with_what_to_do(run: Run) -> None:
    assert "text/train.en: missing: set TEXT_DIR" in run(code=1).stderr
    assert "nowhere/train.en: missing: set TEXT_DIR" in run("TEXT_DIR=nowhere", code=1).stderr


def test_a_removed_result_is_made_again_alone(run: Run, folder: Path) -> None:
    run("TEXT_DIR=text")
    (folder / "work/data-bin/words").unlink()
    assert commands(run("TEXT_DIR=text")) == ["mkdir"]
    (folder / "work").rename(folder / "moved")
    assert commands(run("TEXT_DIR=text", "WORK=moved")) == []
    (folder / "moved").rename(folder / "work")
    (folder / "work/report.md.step").write_text("")  # truncated by a power failure
    assert commands(run("TEXT_DIR=text")) == ["cat"]


def test_more_updates_continue_a_run_and_other_options_set_it_aside_until_they_come_back(
    run: Run, folder: Path
) -> None:
    log = folder / "work/seed-1/checkpoints/log"
    run("TEXT_DIR=text")
    run("UPDATES=5")
    assert log.read_text() == "update\n" * 2
    run("UPDATES=5", "RATE=2")
    assert log.read_text() == "update\n"
    assert "update\nupdate\ntest a" in run("UPDATES=5").stdout
    assert log.read_text() == "update\n" * 2


def test_an_unfinished_output_is_removed_if_it_is_that_of_other_options(run: Run, folder: Path) -> None:
    result, partial = folder / "work/report.md", folder / "work/report.md.partial"
    run("TEXT_DIR=text")
    for argument, kept in (("RATE=1", True), ("RATE=2", False)):
        result.rename(partial)
        run(argument)
        assert partial.exists() == kept


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start the recipe, whose training waits."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work/stop").touch()
    process = subprocess.Popen(
        command("TEXT_DIR=text"), cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + PATIENCE
    while not (folder / "work/seed-1/checkpoints/log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    (folder / "work/stop").unlink()
    return process


def test_a_run_that_was_killed_is_resumed_with_the_command_that_it_was_killed_in(run: Run, folder: Path) -> None:
    with start(folder) as process:
        os.killpg(process.pid, signal.SIGKILL)
    assert commands(run("TEXT_DIR=text")) == ["train=1", "cat"]
    assert (folder / "work/seed-1/checkpoints/log").read_text() == "update\n" * 2


def test_a_second_run_is_refused_while_the_first_or_a_command_that_outlived_it_runs(run: Run, folder: Path) -> None:
    with start(folder) as process:
        refused = run(code=1)
        process.kill()
        process.wait()
        outlived = run(code=1)
        os.killpg(process.pid, signal.SIGKILL)
    for done in (refused, outlived):
        (line,) = done.stderr.splitlines()
        assert "is in use" in line
        assert done.stdout == ""


def test_sigterm_ends_the_command_and_the_recipe(folder: Path) -> None:
    with start(folder) as process:
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_a_command_that_fails_ends_the_recipe_with_its_exit_code(run: Run, folder: Path) -> None:
    script = folder / "recipe.py"
    run("TEXT_DIR=text")  # the report that the failing command then destroys
    script.write_text(RECIPE.replace("cat seed-1/checkpoints/log", "cat seed-1/checkpoints/lost"))
    assert "seed-1/checkpoints/lost" in run("TEXT_DIR=text", code=1).stderr
    script.write_text(RECIPE)
    assert commands(run("TEXT_DIR=text")) == ["cat"]


def test_a_full_disk_ends_the_recipe_in_one_line(folder: Path) -> None:
    limited = ["bash", "-c", 'ulimit -f 0; trap "" XFSZ; exec "$@"', "bash", *command("TEXT_DIR=text")]
    done = subprocess.run(
        limited,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


RESUMED = """
from steps import Recipe
from variables import variables

v = variables(MORE="")
with Recipe("demo", v.WORK) as run:
    run(f"echo {v.MORE} >> out.partial; [ ! -e stop ] && cat out.partial > out && touch second", "second")
"""


def test_an_unfinished_output_is_continued_by_the_same_command_with_the_same_files_only(run: Run, folder: Path) -> None:
    (folder / "recipe.py").write_text(RESUMED)
    (folder / "work").mkdir()
    (more := folder.parent / "more").write_text("a")  # named by its absolute path
    (stop := folder / "work/stop").touch()
    run(f"MORE={more}", code=1)
    run(f"MORE={more}", code=1)
    stop.unlink()
    run(f"MORE={more}")
    run(f"MORE={more}")
    assert (folder / "work/out").read_text().count("\n") == 3
    (folder / "work/out").unlink()
    run(f"MORE={more}")
    assert (folder / "work/out").read_text().count("\n") == 4
    more.write_text("b")
    run(f"MORE={more}")
    assert (folder / "work/out").read_text().count("\n") == 1


def test_the_list_runs_nothing_and_needs_no_text(run: Run, folder: Path) -> None:
    assert commands(run("--list")) == ALL[2:]
    assert not (folder / "work").exists()


@pytest.mark.parametrize(
    ("argument", "said"),
    [("RATES=1", "no variable RATES: use WORK, TEXT_DIR, "), ("RATE=fast", "RATE=fast: give a whole number")],
)
def test_an_argument_that_is_no_value_of_a_variable_is_refused(argument: str, said: str, run: Run) -> None:
    assert said in run(argument, code=2).stderr


# --- downloads


def fetch(source: Path, target: Path, content: bytes) -> "subprocess.CompletedProcess[str]":
    """Download a file of this content."""
    known = f"sha256:{hashlib.sha256(content).hexdigest()}"
    arguments = [source.absolute().as_uri(), str(target), str(len(content)), known]
    script = [sys.executable, str(EXAMPLES / "download.py"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_an_interrupted_download_is_resumed(share: float, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    (tmp_path / "server").write_bytes(content)
    (tmp_path / "file.part").write_bytes(content[: int(share * len(content))])
    done = fetch(tmp_path / "server", tmp_path / "file", content)
    assert (done.returncode, (tmp_path / "file").read_bytes()) == (0, content), done.stderr


@pytest.mark.parametrize("damage", [b"short", b"of one size, but different"])
def test_a_download_of_different_content_is_refused_and_not_kept(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "server").write_bytes(damage)
    done = fetch(tmp_path / "server", tmp_path / "file", b"of one size, and the same.")
    assert (done.returncode, "is damaged" in done.stderr) == (1, True)
    assert {path.name for path in tmp_path.iterdir()} == {"server"}
