"""The GPU report: failures of its cases, its limits and its decisions."""

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gpu_report
import pytest
from gpu.cases import FULL, PARTS, Case, Part
from gpu.environment import nmtkit_version
from gpu.isolation import CaseError, run_isolated
from gpu.measuring import Measurement

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


def test_a_decision_needs_a_difference_of_3_percent_and_ranges_that_do_not_overlap() -> None:
    def decided(*rates: float) -> list[str]:
        found = {"default": Measurement([1000.0, 1020.0, 980.0]), "changed": Measurement(list(rates))}
        return gpu_report.decisions(Case("changed", lambda: None, "default"), found)

    assert decided(1050, 1100, 1150) == ["changed: faster than default, 1.10 of its rate"]
    assert decided(850, 900, 950) == ["changed: slower than default, 0.90 of its rate"]
    assert decided(1010, 1100, 1150) == ["changed: no difference from default, 1.10 of its rate"]
    assert decided(1021, 1022, 1023) == ["changed: no difference from default, 1.02 of its rate"]
    assert gpu_report.decisions(Case("changed", lambda: None, "failed", goal=5.0), {"changed": Measurement([6.0])}) == [
        "goal of 5: reached"
    ]


def test_all_parts_take_ten_minutes_and_a_part_stops_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sum(part.seconds for part in PARTS.values()) <= 600
    cases = [Case("hangs", partial(time.sleep, 1000.0)), Case("waits", partial(time.sleep, 0.0))]
    monkeypatch.setitem(PARTS, "check", Part(1.0, lambda sizes, device: cases))
    assert gpu_report.measure_part("check", FULL, "cpu") == 2
    assert "waits: failed: not begun: the part has used its 1 s" in capsys.readouterr().out


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
