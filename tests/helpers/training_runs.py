"""Runs nmt-train, reads the files of a run, and compares two runs."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from commands import TINY
from patience import PATIENCE
from repository import BIN

from nmtkit.checkpoint import Checkpoint, Weights, load_checkpoint
from nmtkit.storage.run_files import list_checkpoints

Result = subprocess.CompletedProcess[bytes]


def refused(result: Result, *words: str) -> None:
    """Assert that nmt-train refused its options with a single line on stderr that has these words."""
    *_, line = lines = [line for line in result.stderr.decode().splitlines() if "warning: " not in line]
    assert result.returncode == 2
    assert len(lines) == 1
    assert line.startswith("nmt-train: ")
    for word in words:
        assert word in line


def tensors(folder: Path, name: str = "checkpoint_last.pt") -> Weights:
    """All weights and the optimizer state of a checkpoint."""
    checkpoint = load_checkpoint(folder / name, merge=False)
    return checkpoint.weights | {f"optimizer.{key}": tensor for key, tensor in (checkpoint.optimizer or {}).items()}


def assert_same_end(first: Path, second: Path) -> None:
    """Assert that the last checkpoints have bit-identical tensors and equal progress.

    Times may differ, and how often the best validation was discarded.
    """
    ours, theirs = tensors(first), tensors(second)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(tensor, theirs[name]) for name, tensor in ours.items())
    progress, other = (load_checkpoint(folder / "checkpoint_last.pt").progress for folder in (first, second))
    for each in (progress, other):
        for name in ("seconds", "waiting"):
            del each["window"][name]
    for name in progress.keys() - {"minutes", "device_minutes", "processor_minutes", "options"}:
        assert progress[name] == other[name], name


def metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in (json.loads(line, parse_constant=refuse) for line in lines) if row["event"] == event]


def updates(folder: Path) -> list[int]:
    return [update for update, _ in list_checkpoints(folder)]


TIMES = {"minutes", "processor_minutes", "minutes_left", "tokens_per_second", "waiting", "peak_memory_gib"}
DROPOUT = ("--dropout", 0.3, "--attention-dropout", 0.1, "--activation-dropout", 0.1)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


# Adam normalizes gradients. With the paper's ε of 1e-9, the rounding error of a gradient that is zero in exact
# arithmetic (the bias of attention's keys) would become a full-size step.
OPTIONS = (*TINY, *DROPOUT, "--adam-eps", 1e-6, "--validate-every", 25)
TRAIN = BIN / "nmt-train"
Process = subprocess.Popen[bytes]


def start(ranks: int, program: Path, *arguments: object, restarts: int = 0) -> Process:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    words = (*torchrun, "--max-restarts", restarts, program, *arguments)
    return subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, env=environment())


def finish(process: Process, code: int = 0) -> list[str]:
    """Wait for a process; return the lines that its ranks wrote to stderr."""
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, stderr.decode()
    return stderr.decode().splitlines()


def last(folder: Path) -> Checkpoint:
    return load_checkpoint(folder / "checkpoint_last.pt")


def assert_near(first: Path, second: Path) -> None:
    """Assert that the weights are equal up to rounding, since ranks add sums in a different order.

    The relative difference is 1e-7 for gradients, and 1e-4 for the weights after 50 updates; ten times that is allowed.
    """
    ours, theirs = last(first).weights, last(second).weights
    distance = math.sqrt(sum(float(np.square(ours[name] - theirs[name]).sum()) for name in ours))
    length = math.sqrt(sum(float(np.square(weight).sum()) for weight in ours.values()))
    assert distance < 1e-3 * length


def assert_same_rows(first: Path, second: Path) -> None:
    """Assert that two runs logged equal metrics, except for times and memory."""
    for event in ("train", "valid"):
        ours, theirs = metrics(first, event), metrics(second, event)
        assert [row["update"] for row in ours] == [row["update"] for row in theirs]
        for row, other in zip(ours, theirs, strict=True):
            assert {name: row[name] for name in row.keys() - TIMES} == {
                name: other[name] for name in row.keys() - TIMES
            }


def wait_for(condition: Callable[[], bool], process: Process) -> None:
    """Wait until a condition holds or the process has ended."""
    end = time.monotonic() + PATIENCE
    while not condition() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
