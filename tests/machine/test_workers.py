"""The worker pool: order, bounded reading ahead, errors, deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import ROOT

from nmtkit.console import log
from nmtkit.console.log import LostReader
from nmtkit.errors import RunError, UserError
from nmtkit.machine.workers import TASKS_AHEAD, WorkerPool, import_nothing_from_current_folder


def late_when_even(number: int) -> int:
    time.sleep(0.02 if number % 2 == 0 else 0)
    return number * number


def late_when_zero(number: int) -> int:
    time.sleep(0.5 if number == 0 else 0)
    return number


def refuse_three(number: int) -> int:
    if number == 3:
        raise UserError("three is too much")
    return number


def lose_reader(number: int) -> None:
    raise LostReader


def test_results_keep_the_order_of_the_tasks_and_a_pool_can_be_reused() -> None:
    with WorkerPool(3) as pool:
        assert list(pool.map(late_when_even, range(20))) == [number * number for number in range(20)]
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
        assert list(pool.map(abs, [])) == []


def test_the_results_of_several_calls_can_be_read_alternately_and_need_not_be_read_to_the_end() -> None:
    with WorkerPool(2) as pool:
        squares, negated, refused = (
            pool.map(late_when_even, range(20)),
            pool.map(abs, range(-20, 0)),
            pool.map(int, "x"),
        )
        abandoned = pool.map(late_when_even, range(100, 120))
        assert next(abandoned) == 100 * 100
        assert list(zip(squares, negated, strict=True)) == [(number * number, 20 - number) for number in range(20)]
        with pytest.raises(RunError, match="invalid literal"):
            next(refused)
        assert list(pool.map(abs, [-1, -2])) == [1, 2]


def test_an_error_takes_the_place_of_its_result() -> None:
    with WorkerPool(2) as pool:
        results = pool.map(refuse_three, range(10))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(UserError, match=r"^three is too much$"):
            next(results)
        assert list(pool.map(abs, [-1, -2])) == [1, 2]


def test_tasks_are_not_taken_far_ahead_of_the_results() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with WorkerPool(2) as pool:
        for number, _ in enumerate(pool.map(late_when_zero, tasks())):
            assert len(taken) <= number + 2 * TASKS_AHEAD + 2
    assert len(taken) == 100


def test_a_worker_that_loses_the_reader_of_its_messages_ends_the_command_like_the_command_itself() -> None:
    with WorkerPool(1) as pool, pytest.raises(LostReader):
        list(pool.map(lose_reader, [0]))


def test_workers_that_cannot_be_started_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmtkit.machine.workers._starting", lambda: os.open("/no such file", os.O_RDONLY))
    with pytest.raises(RunError, match=r"only 0 of 3 --workers"):
        WorkerPool(3)


def test_workers_use_the_log_format_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "_config", log.LogConfig(log_format="json"))
    with WorkerPool(1) as pool:
        pool.run_in_each(log.logger.warning, "a message")
    assert json.loads(capfd.readouterr().err)["message"] == "a message"


def test_an_unexpected_error_in_a_worker_is_reported_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    message = r"^a worker process failed: ValueError: invalid literal .* 'x'$"
    with WorkerPool(1) as pool, pytest.raises(RunError, match=message):
        list(pool.map(int, ["x"]))
    assert capfd.readouterr().err == ""


def test_workers_import_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the folder of a model: nothing in it can run code."""
    for module in ("threading", "signal", "multiprocessing", "nmtkit"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    script = (
        "import sys; del sys.path[0]; from nmtkit.machine.workers import WorkerPool; WorkerPool(1).run_in_each(abs, -1)"
    )
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("name", ["signal.py", "signal/__init__.py", "signal.pyc"])
def test_before_python_3_11_a_module_that_hides_one_of_pythons_own_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.py").touch()
    with monkeypatch.context() as before:
        before.setattr(sys, "version_info", (3, 10))
        import_nothing_from_current_folder()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(UserError, match="signal"):
            import_nothing_from_current_folder()


def test_starting_workers_leaves_the_environment_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with WorkerPool(1):
        assert "PYTHONSAFEPATH" not in os.environ


def test_a_worker_killed_between_tasks_is_noticed() -> None:
    with WorkerPool(1) as pool:
        (pid,) = pool.map(current_process, [0])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunError, match="worker process died"):
            list(pool.map(abs, range(1000)))


def current_process(_: int) -> int:
    return os.getpid()
