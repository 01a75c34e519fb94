"""The benchmarks run; their measurements are not checked."""

import os
import re
import subprocess
import sys

import pytest
import table1
from gpu.cases import PARTS
from patience import PATIENCE
from repository import ROOT


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_1_is_measured() -> None:
    shown = run("table1.py", "--max-length", 128, "--max-width", 128, "--length", 64, "--width", 64, "--runs", 1)
    fits = re.findall(r"^\| (.+?) \| (O\(.+?\)) \| (-?[\d.]+) \(\d\) \| (-?[\d.]+) \(\d\)", shown, re.MULTILINE)
    assert [name for name, *_ in fits if "whole layer" not in name] == [
        *("self-attention", "self-attention, restricted", "recurrent (LSTM)", "convolutional (k = 3)"),
    ]


@pytest.mark.parametrize("b", [-1.0, 0.0, 1.5])
def test_the_exponent_of_a_power_law_is_recovered(b: float) -> None:
    sizes = [64.0, 128.0, 256.0]
    assert table1.exponent(sizes, [0.3 * size**b for size in sizes]) == pytest.approx(b)
    largest = [int(2.0 ** (6 + number)) for number in range(table1.FITTED)]
    costs = [table1.Cost(9.0, 9.0), *(table1.Cost(0.3 * size**b, 1.0) for size in largest)]
    sweep = table1.Sweep("n", [1, *largest], {"layer": costs})
    assert sweep.exponent("layer", "milliseconds") == pytest.approx(b)


@pytest.mark.slow
def test_every_case_of_the_gpu_report_runs_on_a_cpu_where_its_packages_are_installed() -> None:
    shown = run("gpu_report.py", "--device", "cpu", "--quick")
    assert re.findall(r"^== (\w+)$", shown, re.MULTILINE) == list(PARTS)
    failures = [line for line in shown.splitlines() if "failed: " in line]
    assert all("failed: ModuleNotFoundError" in failure for failure in failures), failures
