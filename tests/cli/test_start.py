"""How a command starts: Ctrl-C during its imports, completion in shells, the list of commands."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from patience import PATIENCE
from repository import BIN, ROOT

from nmtkit.cli.start import COMMANDS, load_command
from nmtkit.config import flag


def output(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=PATIENCE, check=False)


INTERRUPTED = """
import importlib.abc, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            {raising}
sys.meta_path.insert(0, Interrupting())
from nmtkit.cli import start
start.train()
"""


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_imports_exits_quietly(number: str, code: int) -> None:
    raising = f"import os, signal; os.kill(os.getpid(), signal.{number})"
    done = output([sys.executable, "-c", INTERRUPTED.format(raising=raising)], PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize("where", ["__del__", "a callback of weakref"])
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_code_whose_exceptions_python_drops_exits_quietly(number: str, code: int, where: str) -> None:
    dropping = f"""
import os, signal, time, weakref
from nmtkit.cli import start
class Dropping:
    def __del__(self):
        if {where == "__del__"}:
            os.kill(os.getpid(), signal.{number})
def load(name):
    dropping = Dropping()
    watch = weakref.ref(dropping, lambda _: {where != "__del__"} and os.kill(os.getpid(), signal.{number}))
    del dropping
    time.sleep(60)
start.load_command = load
start.start("score")
"""
    done = output([sys.executable, "-c", dropping])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_a_worker_process_starts_exits_quietly(number: str, code: int) -> None:
    starting = f"""
import os, signal, time
from multiprocessing import util
from nmtkit.cli import start
from nmtkit.machine.workers import WorkerPool
started = util.spawnv_passfds
def start_and_interrupt(*args):
    process = started(*args)
    if b"spawn_main" in b" ".join(map(os.fsencode, args[1])):  # before it receives what to run
        os.kill(os.getpid(), signal.{number})
        time.sleep(0.1)
    return process
util.spawnv_passfds = start_and_interrupt
def load(name):
    with WorkerPool(2):
        time.sleep(60)
start.load_command = load
start.start("score")
"""
    done = output([sys.executable, "-c", starting])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


WRITES = """
import torch
from nmtkit.storage.archive_writer import write_archive
class Interrupting(io.FileIO):
    def write(self, content):  # called by torch's C code
        if self.tell() > 0:
            interrupt()
        return super().write(content)
def work():
    with Interrupting("file.pt", "wb") as file:
        write_archive(file, {}, {"weight": torch.zeros(9)})
"""
READS = """
import torch, safetensors.torch
from nmtkit.conversion.safetensors import read_tensors
safetensors.torch.save_file({"weight": torch.zeros(9)}, "file.safetensors")
class Interrupting(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):  # called by the C code of safetensors
        interrupt()
        return function(*arguments, **named or {})
def work():
    with Interrupting():
        read_tensors(Path("file.safetensors"))
"""


@pytest.mark.parametrize("work", [WRITES, READS], ids=["write", "read"])
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_tensors_are_read_or_written_waits_for_the_end(
    work: str, number: str, code: int, tmp_path: Path
) -> None:
    working = f"""
import io, os, signal, sys, time
from pathlib import Path
from nmtkit.cli.command import command
os.chdir({str(tmp_path)!r})
def interrupt():
    os.kill(os.getpid(), signal.{number})
    time.sleep(0.05)
    print("goes on")
{work}
@command("soup")
def main():
    work()
    time.sleep({PATIENCE})
main()
"""
    done = output([sys.executable, "-c", working])
    said = {130: "interrupted", 143: "terminated"}[code]
    assert (done.returncode, done.stderr) == (code, f"soup: {said}\n")
    assert "goes on" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_ends_kills_the_process_as_by_default(number: int) -> None:
    ending = f"""
import atexit, os, sys, time, types
from nmtkit.cli import start
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
slow = Slow()
def main():
    atexit.register(os.kill, os.getpid(), {int(number)})
    sys.exit(0)
start.load_command = lambda name: types.SimpleNamespace(main=main)
start.start("score")
"""
    done = output([sys.executable, "-c", ending])
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_other_exceptions_that_python_drops_are_shown() -> None:
    dropping = """
from nmtkit.cli import start
class Dropping:
    def __del__(self):
        raise ValueError("dropped")
start.load_command = lambda name: Dropping() and None
start.start("score")
"""
    assert "ValueError: dropped" in output([sys.executable, "-c", dropping]).stderr


def test_a_failed_import_is_not_mistaken_for_ctrl_c() -> None:
    done = output([sys.executable, "-c", INTERRUPTED.format(raising="raise ImportError('broken')")])
    assert (done.returncode, done.stderr) == (1, "nmt-train: cannot load a library: broken\n")


def test_an_alarm_set_by_the_calling_program_keeps_its_time() -> None:
    calling = "import os, signal, sys; signal.alarm(3600); os.execv(sys.argv[1], sys.argv[1:])"
    done = output([sys.executable, "-c", calling, str(BIN / "nmt-train"), "--version"])
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_nmtkit_lists_the_commands() -> None:
    done = output([sys.executable, "-m", "nmtkit"])
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == [f"nmt-{command}" for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_config_file_knows_each_option_by_the_name_of_its_flag(command: str) -> None:
    for option in load_command(command).params:
        if isinstance(option, click.Option):
            assert flag(str(option.name)) in option.opts


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shell_completes_the_options_of_every_command(command: str) -> None:
    name = f"nmt-{command}"
    asked = {"COMP_WORDS": f"{name} --log-f", "COMP_CWORD": "1"}
    done = output([str(BIN / name)], **asked, **{f"_NMT_{command.upper()}_COMPLETE": "bash_complete"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,--log-format\n", "")


@pytest.mark.parametrize("asked", [{}, {"COMP_WORDS": "nmt-train", "COMP_CWORD": "x"}])
def test_a_request_for_completions_without_a_command_line_is_refused(asked: dict[str, str]) -> None:
    done = output([str(BIN / "nmt-train")], **asked, _NMT_TRAIN_COMPLETE="bash_complete")
    assert done.returncode == 2
    assert done.stderr == (
        "nmt-train: _NMT_TRAIN_COMPLETE is set for completion, without COMP_WORDS or COMP_CWORD: unset it\n"
    )


@pytest.mark.parametrize("before", ["<", ">", ">>", "2>", "&>", ">|"])
def test_bash_completes_names_of_files_after_a_redirection(before: str) -> None:
    words = ["nmt-generate", "--checkpoint", "a.pt", before, "test"]
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = output([str(BIN / "nmt-generate")], **asked, _NMT_GENERATE_COMPLETE="bash_complete")
    assert (done.returncode, done.stdout, done.stderr) == (0, "file,\n", "")


def test_an_unknown_request_for_completions_is_refused() -> None:
    done = output([str(BIN / "nmt-train"), "--help"], _NMT_TRAIN_COMPLETE="csh_source")
    expected = "nmt-train: _NMT_TRAIN_COMPLETE=csh_source does not ask for completions: unset it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell: str) -> None:
    done = output([str(BIN / "nmt-train")], _NMT_TRAIN_COMPLETE=f"{shell}_source")
    assert done.returncode == 0
    assert "_nmt_train_completion" in done.stdout


def test_bash_completes_values_after_sourcing_the_script() -> None:
    script = """
        eval "$(_NMT_TRAIN_COMPLETE=bash_source nmt-train)"
        COMP_WORDS=(nmt-train data --config options.json --config x --arch transformer_b)
        COMP_CWORD=7
        _nmt_train_completion nmt-train
        echo ${COMPREPLY[@]}
    """
    assert output(["bash", "-c", script]).stdout == "transformer_base transformer_big\n"
