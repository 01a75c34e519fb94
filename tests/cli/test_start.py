"""How a command starts: broken libraries, completion in shells, the list of commands."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from patience import PATIENCE
from repository import BIN, ROOT

from nmtkit.cli.start import COMMANDS, load_command, start
from nmtkit.config import flag


def output(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=PATIENCE, check=False)


def test_python_m_nmtkit_lists_the_commands() -> None:
    done = output([sys.executable, "-m", "nmtkit"])
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == [f"nmt-{command}" for command in COMMANDS]


def test_nmt_generate_starts_without_the_libraries_of_the_network() -> None:
    code = "import sys, nmtkit.cli.generate; print({'ssl', 'http.client'} & {*sys.modules})"
    assert output([sys.executable, "-c", code], PYTHONPATH=str(ROOT)).stdout == "set()\n"


def test_nmt_serve_starts_without_formats_of_documents_and_random_numbers() -> None:
    code = "import sys, nmtkit.serving.server; print({'nmtkit.documents', 'numpy.random', 'torch'} & {*sys.modules})"
    assert output([sys.executable, "-c", code], PYTHONPATH=str(ROOT)).stdout == "set()\n"


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


@pytest.mark.parametrize("before", ["<", "2>"])
def test_bash_completes_names_of_files_after_a_redirection(before: str) -> None:
    words = ["nmt-generate", "--checkpoint", "a.pt", before, "test"]
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = output([str(BIN / "nmt-generate")], **asked, _NMT_GENERATE_COMPLETE="bash_complete")
    assert (done.returncode, done.stdout, done.stderr) == (0, "file,\n", "")


@pytest.mark.parametrize("shell", ["bash", "fish"])
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


def test_windows_is_refused_in_one_sentence() -> None:
    done = output([sys.executable, "-c", "import sys; sys.platform = 'win32'; import nmtkit"], PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stderr.endswith("on Windows, install it in WSL\n")) == (1, True)


def test_a_library_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('libgfortran.so.5: not found')")
    done = output([str(BIN / "nmt-preprocess"), "--help"], PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "nmt-preprocess: cannot load a library: libgfortran.so.5: not found\n"


@pytest.mark.parametrize(("given", "expected"), [({}, "3000"), ({"OMP_WAIT_POLICY": "active"}, None)])
def test_waiting_threads_sleep_unless_the_user_decides(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["nmt-score", "--version"])
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        start("score")
    assert os.environ.get("GOMP_SPINCOUNT") == expected
