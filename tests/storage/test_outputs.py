"""No command writes to one of its inputs, or into a dataset folder."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from commands import Run
from patience import PATIENCE
from repository import BIN

from nmtkit.cli.options import PathName
from nmtkit.cli.start import COMMANDS, load_command

# The options of each command that name an output, with the other arguments that the command needs. The folders of
# nmt-train have a test of their own below. All other paths are inputs.
OUTPUTS: dict[tuple[str, str], list[str]] = {
    ("preprocess", "--destdir"): ["-s", "en", "-t", "de", "--trainpref", "TEXT"],
    ("preprocess", "--report"): ["-s", "en", "-t", "de", "--trainpref", "TEXT", "--destdir", "NEW"],
    ("average", "--output"): ["CHECKPOINT"],
    ("import", "--output"): ["CHECKPOINT"],
    ("export", "--output"): ["CHECKPOINT", "--to", "safetensors", "--force"],
    ("generate", "--output"): ["--checkpoint", "CHECKPOINT"],
    ("generate", "--attention-html"): ["--checkpoint", "CHECKPOINT", "--output", "NEW"],
}
NEEDED = {  # by an input
    ("generate", "--reference"): ["--sacrebleu"],
    ("export", "--shortlist"): ["--to", "bergamot"],
    ("export", "--int8"): ["--to", "bergamot"],
}


def paths_of(name: str) -> dict[str, click.Parameter]:
    """The options and arguments of a command that name a file or folder."""
    return {one.opts[-1]: one for one in load_command(name).params if isinstance(one.type, PathName)}


def pairs() -> list[Any]:
    """Every output of a command with every path that it reads."""
    return [
        pytest.param(command, output, read, id=f"{command} {output} {read}")
        for command, output in OUTPUTS
        for read in paths_of(command)
        if (command, read) not in OUTPUTS and read.strip("-") != "dataset"  # a folder, tested below
    ]


@pytest.fixture
def words(tiny_checkpoint: Path, tmp_path: Path) -> dict[str, str]:
    """The values of the placeholders in OUTPUTS."""
    for side in ("en", "de"):
        (tmp_path / f"text.{side}").write_text("a dog\n")
    return {"CHECKPOINT": str(tiny_checkpoint), "TEXT": str(tmp_path / "text"), "NEW": str(tmp_path / "new")}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_output_of_a_command_is_known() -> None:
    named = {(name, path) for name in COMMANDS for path in paths_of(name) if "output" in path or "html" in path}
    assert named <= {*OUTPUTS}


@pytest.mark.parametrize(("command", "output", "read"), pairs())
def test_no_output_replaces_an_input(
    command: str, output: str, read: str, words: dict[str, str], tmp_path: Path, run_here: Run
) -> None:
    """The name of the input ends in a language, as --exclude-overlap requires; the output is a link to it."""
    victim, link = tmp_path / "input.en", tmp_path / "link"
    link.symlink_to(victim)
    if read == "--config":
        victim.write_text("{}")
    else:
        shutil.copy(words["CHECKPOINT"], victim)
    parameter = paths_of(command)[read]
    given = [str(victim)] * max(1, parameter.nargs)
    required = [words.get(word, word) for word in OUTPUTS[command, output]]
    if isinstance(parameter, click.Argument) or read in required:  # the input in the place of the checkpoint
        required.remove(words["CHECKPOINT"])
    if isinstance(parameter, click.Option):
        given = [read, *given]
        required = [word for word in required if word != read]
    before = contents(tmp_path)
    done = run_here(f"nmt-{command}", *given, *required, *NEEDED.get((command, read), []), output, link)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert b"input.en is an input and would be overwritten: choose a different output" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("command", "output"), OUTPUTS)
@pytest.mark.parametrize("name", ["vocab.txt", "new"])
def test_no_output_is_written_into_a_dataset(
    command: str,
    output: str,
    name: str,
    words: dict[str, str],
    datasets: dict[str, Path],
    tmp_path: Path,
    run_here: Run,
) -> None:
    dataset = tmp_path / "dataset"
    shutil.copytree(datasets["joined"], dataset)
    before = contents(tmp_path)
    required = [words.get(word, word) for word in OUTPUTS[command, output]]
    done = run_here(f"nmt-{command}", *required, output, dataset / name)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert f"{name}: its folder is a dataset, which may contain no other files: choose" in done.stderr.decode()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("option", ["--save-dir", "--tensorboard"])
@pytest.mark.parametrize(("name", "refused"), [("dataset", "is"), ("dataset/new", "is in")])
def test_no_training_writes_into_a_dataset(
    option: str, name: str, refused: str, datasets: dict[str, Path], tmp_path: Path, run_here: Run
) -> None:
    pytest.importorskip("tensorboard")
    dataset = tmp_path / "dataset"
    shutil.copytree(datasets["joined"], dataset)
    before = contents(tmp_path)
    folders = {"--save-dir": tmp_path / "run"} | {option: tmp_path / name}
    more = [word for pair in folders.items() for word in pair]
    done = run_here("nmt-train", datasets["joined"], "--arch", "transformer_tiny", "--device", "cpu", *more)
    assert done.returncode == 2
    message = f"{option} {tmp_path / name} {refused} a dataset, which may contain no other files: choose a different"
    assert message in done.stderr.decode()
    assert contents(dataset) == {path: bytes_ for path, bytes_ in before.items() if path.is_relative_to(dataset)}


def test_a_folder_that_contains_an_input_is_not_replaced(tiny_checkpoint: Path, tmp_path: Path, run_here: Run) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    shutil.copy(tiny_checkpoint, folder / "model.bin")
    done = run_here("nmt-export", folder / "model.bin", "--to", "safetensors", "--force", "--output", folder)
    assert (done.returncode, b"model.bin is an input and would be overwritten" in done.stderr) == (2, True)
    assert [path.name for path in folder.iterdir()] == ["model.bin"]


def test_the_partial_output_does_not_replace_an_input(tiny_checkpoint: Path, tmp_path: Path, run_here: Run) -> None:
    text = tmp_path / "text.partial"
    text.write_text("a dog\n")
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--input", text, "--output", tmp_path / "text")
    assert (done.returncode, b"text.partial is an input and would be overwritten" in done.stderr) == (2, True)
    assert text.read_text() == "a dog\n"


def test_a_folder_with_a_foreign_dataset_json_takes_outputs(
    tiny_checkpoint: Path, tmp_path: Path, run_here: Run
) -> None:
    (tmp_path / "dataset.json").write_text('{"name": "mine"}')
    done = run_here("nmt-generate", "--checkpoint", tiny_checkpoint, "--output", tmp_path / "out", input=b"")
    assert (done.returncode, (tmp_path / "out").exists()) == (0, True), done.stderr


@pytest.mark.skipif(not shutil.which("sh"), reason="sh is missing")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nmt-generate --checkpoint a.pt < text >> text", "stdin is also stdout"),
        ("nmt-generate --checkpoint a.pt < text > text", "stdin is also stdout"),
        ("nmt-generate --checkpoint a.pt --input text >> text", "text is also stdout"),
        ("nmt-generate --checkpoint a.pt --output out --attention-html - < text >> text", "stdin is also stdout"),
        ("nmt-score --reference other --target-lang de < text >> text", "stdin is also stdout"),
        ("nmt-score other --reference text --target-lang de >> text", "text is also stdout"),
        (
            "nmt-generate --checkpoint a.pt --output text < text",
            "text is the input from stdin and would be overwritten",
        ),
        (
            "nmt-generate --checkpoint a.pt --output text < other > text",
            "text is the file that stdout is redirected to",
        ),
    ],
)
def test_a_redirection_to_an_input_or_output_is_refused(
    command: str, message: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copy(tiny_checkpoint, tmp_path / "a.pt")
    for text in ("text", "other"):
        (tmp_path / text).write_text("a dog\n")
    shell = f"{shlex.quote(sys.executable)} {shlex.quote(str(BIN))}/{command}"
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"{command.split()[0]}: {message}")


def test_stdout_may_be_the_input_if_nothing_is_written_to_it(tiny_checkpoint: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("a dog\n")
    command = [sys.executable, str(BIN / "nmt-generate"), "--checkpoint", str(tiny_checkpoint), "--max-len-b", "3"]
    with text.open("a") as stdout:
        done = subprocess.run(
            [*command, "--input", str(text), "--output", str(tmp_path / "out")],
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, text.read_text()) == (0, "a dog\n"), done.stderr
