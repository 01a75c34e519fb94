"""The benchmarks run; their measurements are not checked."""

import os
import re
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE
from repository import ROOT


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_training_benchmark_for_gpus_also_runs_on_a_cpu() -> None:
    small = ("--arch", "transformer_tiny", "--vocabulary", 100, "--batch-tokens", 200, "--max-tokens", 100)
    shown = run("gpu.py", *small, "--updates", 1, "--device", "cpu", "--precision", "fp32", "--no-compile")
    assert re.findall(r"^without (\w+)", shown, re.MULTILINE) == ["nothing", "fused", "fused", "loss"]
    assert all(int(rate.replace(",", "")) > 0 for rate in re.findall(r"([\d,]+) target tokens/s", shown))


def test_table_1_is_measured_and_drawn(tmp_path: Path) -> None:
    small = ("--max-length", 128, "--max-width", 128, "--length", 64, "--width", 64, "--runs", 1)
    shown = run("table1.py", *small, "--picture", tmp_path / "table1.svg")
    fits = re.findall(r"^\| (.+?) \| (O\(.+?\)) \| (-?[\d.]+) \(\d\) \| (-?[\d.]+) \(\d\)", shown, re.MULTILINE)
    assert [name for name, *_ in fits if "whole layer" not in name] == [
        *("self-attention", "self-attention, restricted", "recurrent (LSTM)", "convolutional (k = 3)"),
    ]
    assert (tmp_path / "table1.svg").read_text(encoding="utf-8").endswith("</svg>\n")


def test_the_static_step_of_the_search_benchmark_gives_the_same_outputs_as_the_plain_step() -> None:
    small = ("--arch", "transformer_tiny", "--vocabulary", 60, "--length", 20, "--batch", 5, "--beam", 3, "--runs", 1)
    shown = run("generate_gpu.py", *small, "--device", "cpu", "--precision", "fp32")
    assert re.findall(r"(\w+): (\d+) of 10 outputs", shown) == [("plain", "10"), ("static", "10")]
    assert len(re.findall(r"[\d,]+ output tokens/s", shown)) == 2
