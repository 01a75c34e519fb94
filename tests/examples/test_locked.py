"""locked.py: which steps of the recipes run, and which are refused."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
from locked import ENDED, started
from patience import PATIENCE
from recipe_commands import STUBS, WAIT, make_with, multi30k_in
from repository import PYTHON, ROOT


def locked(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "examples/locked.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def recorded(command: Path, text: str, *in_use: Path, make: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Record a command for a make, by default one that has ended."""
    return locked("--record", command, text, ended() if make is None else make, *in_use)


def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@contextmanager
def running(*locks: object) -> Iterator[None]:
    """A step with these locks runs."""
    step = [sys.executable, str(ROOT / "examples/locked.py"), *map(str, locks)]
    with subprocess.Popen([*step, "--", "bash", "-c", "echo; read"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate()


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A file with the command of a step."""
    path = tmp_path / "generate.command"
    recorded(path, "one")
    return path


def test_a_step_runs_if_its_file_contains_its_command(command: Path) -> None:
    done = locked("--made-by", command, "one", "--", "echo", "result")
    assert (done.returncode, done.stdout, done.stderr) == (0, "result\n", "")


@pytest.mark.parametrize("text", ["two\n", "one", None], ids=["another", "incomplete", "missing"])
def test_a_step_is_refused_if_its_file_does_not_contain_its_command(text: str | None, command: Path) -> None:
    command.unlink() if text is None else command.write_text(text)
    done = locked("--made-by", command, "one", "--", "echo", "result")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{command}: another make has begun this step with other variables: call make again\n"


def test_the_command_of_a_running_step_is_kept(command: Path) -> None:
    with running("--made-by", command, "one"), running("--made-by", command, "one"):
        done = recorded(command, "two")
        assert (done.returncode, command.read_text()) == (1, "one\n")
    assert done.stderr == f"a step that needs {command} runs: wait for it, or stop it\n"
    assert recorded(command, "two").returncode == 0
    assert command.read_text() == "two\n"


def test_a_command_is_kept_until_the_makes_that_use_it_have_ended(command: Path) -> None:
    with subprocess.Popen(["sleep", "99"]) as one, subprocess.Popen(["sleep", "99"]) as other:
        for make in (one, other):
            assert recorded(command, "one", make=make.pid).returncode == 0
        for make in (one, other):
            done = recorded(command, "two", make=ended())
            assert (done.returncode, command.read_text()) == (1, "one\n")
            assert re.fullmatch(
                rf"another make \(process \d+\) uses {command} with other variables: wait for it, or stop it\n",
                done.stderr,
            )
            make.kill()
            make.wait()
    assert recorded(command, "two").returncode == 0
    assert command.read_text() == "two\n"


@pytest.mark.parametrize("proc", ["/proc", "/missing"])
def test_the_start_of_a_process_identifies_it_until_it_has_ended(proc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ps") is None or not Path("/proc/self/stat").exists():
        pytest.skip("neither ps nor /proc")
    monkeypatch.setattr("locked.PROC", Path(proc))
    start = started(str(os.getpid()))
    assert start == started(str(os.getpid()))
    assert not {ENDED, " "} & set(start)
    with subprocess.Popen(["sleep", "99"]) as process:
        assert started(str(process.pid)) != start or proc == "/missing"  # ps counts seconds
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert started(str(process.pid)) == ENDED or proc == "/missing"
    assert started(str(process.pid)) == ENDED


@pytest.mark.parametrize(
    ("found", "is_same"),
    [
        ("train work/data --save-dir work/run", True),
        ("train /data/old/data --save-dir /data/old/run", True),
        ("train work/data --save-dir other/run", False),
        ("train work/data --save-dir work/run --lr 2", False),
        ("train work/data --save-dir workrun", False),
    ],
)
def test_a_command_that_an_earlier_release_recorded_with_the_name_of_its_folder_is_kept_with_its_date(
    found: str, is_same: bool, command: Path
) -> None:
    command.write_text(f"{found}\n")
    os.utime(command, (1, 1))
    assert recorded(command, "train WORK/data --save-dir WORK/run").returncode == 0
    assert command.read_text() == "train WORK/data --save-dir WORK/run\n"
    assert (command.stat().st_mtime == 1) == is_same


def test_a_make_may_replace_the_command_that_it_alone_uses(command: Path) -> None:
    for text in ("two", "three"):
        assert recorded(command, text, make=os.getpid()).returncode == 0
    assert command.read_text() == "three\n"


def test_an_interrupted_list_of_makes_and_one_that_cannot_be_written_do_not_matter(command: Path) -> None:
    users = Path(f"{command}.users")
    users.write_text(f"{os.uname().nodename} {os.getpid()}")
    users.chmod(0o444)
    assert recorded(command, "one").returncode == 0
    users.chmod(0o644)
    assert recorded(command, "two").returncode == 0


def test_a_file_that_contains_the_command_is_not_written_again(command: Path) -> None:
    before = command.stat()
    recorded(command, "one")
    assert command.stat().st_mtime_ns == before.st_mtime_ns
    recorded(command, "two")
    assert command.stat().st_ino == before.st_ino  # the file that is locked


def test_two_makes_may_begin_the_same_step(command: Path) -> None:
    with running("--made-by", command, "one"):
        assert recorded(command, "one", command.parent).returncode == 0


def test_no_file_is_replaced_while_a_step_reads_it_and_none_read_while_it_is_replaced(tmp_path: Path) -> None:
    read, replaced, missing = tmp_path / "averaged.pt", tmp_path / "scores.txt", tmp_path / "missing"
    read.touch()
    replaced.touch(0o444)
    with running("--read", read, "--read", missing, replaced, missing):
        for path, options in ((read, (read,)), (replaced, ("--read", replaced)), (replaced, (replaced,))):
            done = locked(*options, "--", "echo")
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == f"a step that needs {path} runs: wait for it, or stop it\n"
        assert locked("--read", read, "--", "true").returncode == 0
    assert locked(read, replaced, "--", "true").returncode == 0


def test_a_file_that_another_make_has_made_meanwhile_is_not_made_again(command: Path, tmp_path: Path) -> None:
    source, result = tmp_path / "text", tmp_path / "dataset.json"
    source.touch()

    def make() -> str:
        return locked("--made-by", command, "one", "--read", source, "--if-needed", result, "--", "echo", "made").stdout

    assert make() == "made\n"  # it is missing
    result.touch()
    assert make() == ""
    for newer in (source, command):
        os.utime(newer, ns=(0, result.stat().st_mtime_ns + 1))
        assert make() == "made\n"
        os.utime(newer, ns=(0, result.stat().st_mtime_ns))  # not older, as for make
        assert make() == ""


def test_a_second_make_does_not_replace_the_dataset_of_a_training(tmp_path: Path) -> None:
    """It decides to preprocess before the first make has done so, and goes on while that trains."""
    recipe = multi30k_in(tmp_path / "checkout")
    late = f'case " $* " in *" nmt-preprocess "*) touch late; {WAIT};; esac\nexec {PYTHON} "$@"'
    second = make_with(tmp_path / "late", recipe, STUBS | {"python": late}, "MULTI30K_DIR=text", "score")
    training = f"{STUBS['nmt-train']}; rm wait; touch training; {WAIT.replace('-e wait', '! -e refused')}"
    first = make_with(tmp_path / "bin", recipe, STUBS | {"nmt-train": training}, "MULTI30K_DIR=text", "score")
    (recipe / "wait").touch()
    with ThreadPoolExecutor() as pool:
        refused = pool.submit(second)
        while not (recipe / "late").exists() and not refused.done():
            time.sleep(0.01)
        finished = pool.submit(first)
        assert refused.result().returncode == 2
        (recipe / "refused").touch()
    assert (recipe / "training").exists()
    assert finished.result().returncode == 0
    assert "nmt-train" not in first().stdout


def test_makes_that_begin_together_share_one_dataset(tmp_path: Path) -> None:
    recipe = multi30k_in(tmp_path / "checkout")
    slow = f"touch preprocessing; {WAIT}\n{STUBS['nmt-preprocess']}"
    first = make_with(tmp_path / "bin", recipe, STUBS | {"nmt-preprocess": slow}, "MULTI30K_DIR=text")
    said = f'case " $* " in *" nmt-preprocess "*) exec 2> said;; esac\nexec {PYTHON} "$@"'
    again = STUBS | {"python": said, "nmt-preprocess": "touch again"}
    second = make_with(tmp_path / "second", recipe, again, "MULTI30K_DIR=text")
    (recipe / "wait").touch()
    with ThreadPoolExecutor() as pool:
        makes = [pool.submit(first, "SEEDS=1", "work/seed-1/scores.txt")]
        while not (recipe / "preprocessing").exists() and not makes[0].done():
            time.sleep(0.01)
        makes.append(pool.submit(second, "SEEDS=2", "work/seed-2/scores.txt"))
        while not ((recipe / "said").exists() and (recipe / "said").read_text()) and not makes[1].done():
            time.sleep(0.01)
        (recipe / "wait").unlink()
    assert [make.result().returncode for make in makes] == [0, 0]
    assert not (recipe / "again").exists()


def test_a_step_waits_for_its_turn_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data-bin.lock"
    path.touch()
    command = [sys.executable, str(ROOT / "examples/locked.py"), "--in-turn", str(path), "--", "echo", "done"]
    with running(path):
        step = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
        assert step.stderr is not None
        assert step.stderr.readline() == f"{path} is in use by another make: waiting for it\n"
        assert step.poll() is None
    assert step.communicate(timeout=PATIENCE) == ("done\n", "")


def test_a_command_that_cannot_run_is_reported_as_by_a_shell(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for command, code, why in (
        ("nmt-nothing", 127, "command not found"),
        (tmp_path / "data", 126, "Permission denied"),
    ):
        done = locked("--", command)
        assert (done.returncode, done.stderr) == (code, f"{command}: {why}\n")


def test_a_file_system_error_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing/train.command"
    done = recorded(path, "one")
    assert (done.returncode, done.stderr) == (1, f"{path}: No such file or directory\n")


def test_a_command_that_cannot_be_written_is_named(command: Path) -> None:
    no_space = 'ulimit -f 0; exec "$@"'  # blocks of a file
    program = sys.executable, str(ROOT / "examples/locked.py")
    done = subprocess.run(
        ["bash", "-c", no_space, "bash", *program, "--record", str(command), "another", str(ended())],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"{command}: File too large\n")


def test_a_command_ends_silently_when_its_reader_has_gone_as_in_a_shell() -> None:
    done = locked("--", "bash", "-o", "pipefail", "-c", "yes | head -1")
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGPIPE, "y\n", "")


def test_a_report_has_no_results_of_another_make(tmp_path: Path) -> None:
    """A first make has finished seed 1 and trains with seed 2; a second one asks for seed 1 with other options."""
    recipe = multi30k_in(tmp_path / "checkout")
    training = f'{STUBS["nmt-train"]}\n[[ "$*" != *"--seed 2 "* ]] || {{ touch training; {WAIT}; }}'
    make = make_with(tmp_path / "bin", recipe, STUBS | {"nmt-train": training}, "MULTI30K_DIR=text")
    runs = "work/seed-1/scores.txt", "work/seed-2/scores.txt"
    (recipe / "wait").touch()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(make, "SEEDS=1 2", *runs)
        while not (recipe / "training").exists() and not first.done():
            time.sleep(0.01)
        refused = make("SEEDS=1", "UPDATES=5", runs[0])
        same = make("SEEDS=1", runs[0])
        (recipe / "wait").unlink()
    assert (first.result().returncode, refused.returncode, same.returncode) == (0, 2, 0)
    assert " uses work/seed-1/train.command with other variables: wait for it, or stop it\n" in refused.stderr
    assert make("SEEDS=1", "UPDATES=5", runs[0]).returncode == 0


def test_a_report_waits_for_that_of_another_make(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    recipe = tmp_path / "examples/distillation"
    (recipe / "work/multi30k/seed-1").mkdir(parents=True)
    python = f"""case $1 in
../locked.py) exec 2> said;&
-c | ../dates.py) exec {PYTHON} "$@";;
esac
echo the report"""
    make = make_with(tmp_path / "bin", recipe, STUBS | {"python": python}, "CORPORA=multi30k", "SEEDS=1", "MAKE=true")
    (recipe / "work/report.lock").touch()
    with ThreadPoolExecutor() as pool:
        with running(recipe / "work/report.lock"):
            waiting = pool.submit(make)
            while not ((recipe / "said").exists() and (recipe / "said").read_text()) and not waiting.done():
                time.sleep(0.01)
            assert not (recipe / "work/report.md").exists()
        done = waiting.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert (recipe / "said").read_text() == "work/report.lock is in use by another make: waiting for it\n"
    assert (recipe / "work/report.md").read_text() == "the report\n"


OPTIONS = {
    "nmt-preprocess": "VOCAB_SIZE=7",
    "nmt-train": "UPDATES=7",
    "nmt-average": "AVERAGE=--best 2",
    "nmt-generate": "BEAM=7",
}


@pytest.mark.parametrize(("changed", "name"), list(combinations_with_replacement(OPTIONS, 2)))
def test_a_make_with_other_variables_does_not_use_the_result_of_a_step_that_ran_meanwhile(
    changed: str, name: str, tmp_path: Path
) -> None:
    """`changed` is the first step with another command; a first make runs the step `name`."""
    recipe = multi30k_in(tmp_path / "checkout")
    waiting = f"if mkdir waiting 2> /dev/null; then {WAIT}; fi\n"  # the first call waits
    make = make_with(tmp_path / "bin", recipe, STUBS | {name: waiting + STUBS[name]}, "MULTI30K_DIR=text", "score")
    (recipe / "wait").touch()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(make)
        while not (recipe / "waiting").exists() and not first.done():
            time.sleep(0.01)
        refused = make(OPTIONS[changed])
        (recipe / "wait").unlink()
    assert (first.result().returncode, refused.returncode) == (0, 2)
    assert ": wait for it, or stop it\n" in refused.stderr
    again = make(OPTIONS[changed])
    assert again.returncode == 0
    assert f"\n{name} " in f"\n{again.stdout}"
    assert f"\n{name} " not in f"\n{make(OPTIONS[changed]).stdout}"
