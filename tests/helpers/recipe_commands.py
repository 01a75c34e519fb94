"""Runs recipes by make, with the real commands or with stubs, and parses the options of nmt-train."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from patience import PATIENCE
from repository import PYTHON, ROOT, in_shell

from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train

Make = Callable[..., "subprocess.CompletedProcess[str]"]


def parsed(*flags: str) -> dict[str, Any]:
    """Parse flags of nmt-train; return all options by name."""
    with nmt_train.make_context("nmt-train", ["DATASET", *flags]) as context:
        choose_model(context.params)
        return context.params


def value(option: str) -> str:
    """A bash expression for the value of an option of the running command."""
    return f'$(sed "s/.*--{option} \\([^ ]*\\).*/\\1/" <<< "$*")'


# Waits while there is a file `wait`. It ends by itself, since a test that is killed leaves the file.
WAIT = "for _ in {1..9000}; do [ -e wait ] || break; sleep 0.01; done"
# A bash command that prints the options of nmt-preprocess and a checksum of its text, as a stand-in for a dataset.
DATASET = r"""{ echo "$*"; for prefix in $(grep -oe '--[a-z]*pref [^ ]*' <<< "$*" | cut -d ' ' -f 2); do
    cat $prefix.*; done | cksum; }"""
STUBS = {  # commands that write the targets of their rules and print their folders
    "nmt-preprocess": f"folder={value('destdir')}; mkdir -p $folder; {DATASET} > $folder/dataset.json; "
    "echo preprocess $folder",
    "nmt-train": f"folder={value('save-dir')}; mkdir -p $folder; cp $1/dataset.json $folder/{value('max-updates')}; "
    "echo train $folder\n[ ! -e stop ]",
    "nmt-average": f'{{ echo "$*"; ls $1; cat $1/*; }} > {value("output")}',
    "nmt-generate": f"touch {value('output')}; echo BLEU = 7",
}
REAL = {name: f'exec {in_shell(name)} "$@"' for name in STUBS}


def unlocked(path: str) -> str:
    """A bash command that creates the file `unlocked` if no process has a lock on a file."""
    lock = f"import fcntl; fcntl.flock(open('{path}', 'rb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return f"{{ {PYTHON} -c \"{lock}\" 2>&1 || true; }} | grep -q '^BlockingIOError' || touch unlocked"


def multi30k_in(checkout: Path) -> Path:
    """The folder of the Multi30k recipe in a copy of the examples, with its text in `text`."""
    shutil.copytree(ROOT / "examples", checkout / "examples", ignore=shutil.ignore_patterns("work"))
    folder = checkout / "examples/multi30k"
    (folder / "text").mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (folder / "text" / f"{split}.{language}.gz").write_text("all of it")
    return folder


def make_with(folder: Path, recipe: Path, bodies: Mapping[str, str], *variables: str) -> Make:
    """A function that runs make in the folder of a recipe, with these commands in PATH, written to `folder`."""
    folder.mkdir()
    for name, body in ({"python": f'exec {PYTHON} "$@"', **bodies}).items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"PATH": f"{folder}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, timeout: float = PATIENCE) -> "subprocess.CompletedProcess[str]":
        """After the timeout, all processes are killed."""
        command = ["make", *variables, *arguments]
        with subprocess.Popen(
            command,
            cwd=recipe,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    return run


def called(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The folders of the datasets and trainings that the stubs were called for."""
    return re.findall(r"^(?:preprocess|train) (\S+)$", done.stdout, re.MULTILINE)
