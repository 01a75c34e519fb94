"""Runs commands with faults, in forks of one process that has loaded them all."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fault_runner
import pytest
from commands import TINY
from faults import Faulty, Result
from repository import ROOT

from nmtkit.checkpoint import Checkpoint, save_checkpoint


@pytest.fixture(scope="session")
def runner() -> "Iterator[subprocess.Popen[str]]":
    """The process that runs the commands."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, fault_runner.__file__]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def faulty(runner: "subprocess.Popen[str]", tmp_path: Path) -> Faulty:
    """Run a command: faulty("nmt-average", …, kill_at=3) is killed before its third change of a file in tmp_path.

    `limit` is the largest size of a file that can be written, in bytes; `user` the id of its user, without a HOME.
    """

    def run(
        command: str,
        *arguments: object,
        input: str = "",
        cwd: object = "/",
        umask: int = 0o022,
        limit: int | None = None,
        user: int | None = None,
        kill_at: int = 0,
        folder: Path = tmp_path,
    ) -> Result:
        assert runner.stdin
        assert runner.stdout
        fault: dict[str, Any] = {
            "command": command,
            "arguments": [*map(str, arguments)],
            "input": input,
            "cwd": str(cwd),
        }
        fault |= {"umask": umask, "limit": limit, "user": user, "kill_at": kill_at, "folder": str(folder)}
        print(json.dumps(fault), file=runner.stdin, flush=True)
        return Result(*json.loads(runner.stdout.readline()))

    return run


@pytest.fixture
def command_lines(
    datasets: dict[str, Path], tiny_checkpoint: Path, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> dict[str, list[object]]:
    """A call of each command that writes files, all to `tmp_path`/result."""
    save_checkpoint(tmp_path / "second.pt", make_checkpoint(seed=2))
    result, text = tmp_path / "result", datasets["joined"].parent / "train"
    return {
        "nmt-preprocess": [
            "-s",
            "en",
            "-t",
            "de",
            "--trainpref",
            text,
            "--vocab-size",
            60,
            "--workers",
            1,
            "--destdir",
            result,
        ],
        "nmt-average": [tiny_checkpoint, tmp_path / "second.pt", "--output", result],
        "nmt-export": [tiny_checkpoint, "--to", "safetensors", "--force", "--output", result],
        "nmt-generate": ["--checkpoint", tiny_checkpoint, "--max-len-b", 4, "--output", result],
        "nmt-train": [datasets["joined"], "--save-dir", result, *TINY, "--max-updates", 6, "--save-every", 2],
    }
