"""The GPU report: failures of its cases, and its tables."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import gpu_report
import pytest
from gpu.environment import nmtkit_version
from gpu.isolation import CaseError, run_isolated
from gpu.measuring import Measurement, Profile
from gpu.results import Report, Result

from nmtkit.version import __version__


def reason(work: Callable[[], object], seconds: float = 60.0) -> str:
    """The reason why a case fails."""
    with pytest.raises(CaseError) as failure:
        run_isolated(work, {}, seconds)
    return str(failure.value)


def test_a_case_returns_its_result_and_has_the_environment_variables_given_to_it() -> None:
    assert run_isolated(partial(os.getenv, "NMTKIT_TEST_CASE"), {"NMTKIT_TEST_CASE": "yes"}, 60.0) == "yes"
    assert "NMTKIT_TEST_CASE" not in os.environ


def test_an_exception_a_crash_and_a_hang_of_a_case_become_its_reason() -> None:
    assert reason(partial(int, "x")).startswith("ValueError: invalid literal")
    assert reason(partial(os._exit, 3)) == "the process ended with exit code 3"
    assert reason(partial(time.sleep, 1000.0), seconds=1.0) == "no result within 1 s"


def test_the_report_has_medians_ratios_and_failures() -> None:
    profile = Profile(["flash_attention"], 0.25, {"gemm": 0.5})
    first = Measurement([1000.0, 3000.0, 2000.0], 3 << 30, 0.4, profile)
    results = [
        Result("training", "default", "", 1.0, first),
        Result("training", "faster", "default", 1.0, Measurement([5000.0])),
        Result("training", "broken", "default", 1.0, failure="RuntimeError: a | b"),
    ]
    report = Report({"GPU": "a card"}, results)
    rows = [line for line in report.to_markdown().splitlines() if line.startswith("|")]
    assert "| GPU | a card |" in rows
    assert "| default | 2,000 | 1,000–3,000 |  |  | 40.0% | 25.0% | 3.0 | flash_attention |" in rows
    assert "| faster | 5,000 | 5,000–5,000 | 2.50 | default |  |  |  | not torch's |" in rows
    assert "| broken | failed: RuntimeError: a / b |  |  |  |  |  |  |  |" in rows
    assert "training, default: `gemm` 50%" in report.to_markdown()
    assert json.loads(report.to_json())["results"][0]["measurement"]["rates"] == [1000.0, 3000.0, 2000.0]


def test_a_report_is_completed_in_the_same_environment_only(tmp_path: Path) -> None:
    environment = {"sizes": "quick", "GPU": "a card", "torch": "2.13", "nmtkit": "1.0 123abc"}
    profile = Profile(["flash_attention"], 0.25, {"gemm": 0.5})
    measured = Result("training", "default", "", 1.0, Measurement([1000.0], 3 << 30, 0.4, profile))
    report = Report(environment, [measured, Result("training", "broken", "default", 1.0, failure="no memory")])
    gpu_report.write(report, tmp_path / "report")
    again = gpu_report.begin({**environment, "copy, GB/s": 3.0}, tmp_path / "report")
    assert again == report
    assert again.has("training", "default")
    assert not again.has("training", "broken")
    again.add(Result("training", "broken", "default", 1.0, Measurement([500.0])))
    assert [result.name for result in again.results] == ["default", "broken"]
    for other in ({"torch": "2.14"}, {"nmtkit": "1.0 456def"}):
        with pytest.raises(click.ClickException, match="use a different --output"):
            gpu_report.begin({**environment, **other}, tmp_path / "report")
    assert not gpu_report.begin(environment, tmp_path / "other").results


def test_the_version_of_nmtkit_has_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        as_someone = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.check_output(["git", "-C", tmp_path, *as_someone, *words], text=True)

    assert nmtkit_version(tmp_path) == __version__
    git("init", "--quiet")
    (tmp_path / "file").touch()
    git("add", "file")
    git("commit", "--quiet", "--message", "First")
    commit = git("rev-parse", "--short=12", "HEAD").strip()
    assert nmtkit_version(tmp_path) == f"{__version__} {commit}"
    (tmp_path / "file").write_text("changed")
    assert nmtkit_version(tmp_path) == f"{__version__} {commit} + changes"
