"""The number of CPU threads of a process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmtkit.machine import threads
from nmtkit.machine.threads import available_cores, scheduled_seconds, set_threads
from nmtkit.machine.torchrun import Place


@pytest.mark.parametrize(("limits", "cores"), [([], 6), ([2.0, 3.9], 2), ([0.5], 1)])
def test_a_container_can_have_fewer_cores_than_the_machine(
    limits: list[float], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)), raising=False)
    monkeypatch.setattr(threads, "cpu_limits", lambda: iter(limits))
    assert available_cores() == cores


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(
    ("given", "cores", "processes", "expected"),
    [(None, 2, 1, 2), (None, 8, 1, 4), (None, 8, 4, 2), (8, 2, 4, 8)],
)
def test_threads_are_those_given_else_at_most_the_share_of_the_process_in_the_cores(
    given: int | None, cores: int, processes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    monkeypatch.setattr(threads, "place_or_alone", lambda: Place(local_size=processes))
    set_threads(given)
    assert torch.get_num_threads() == expected


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux counts how long threads wait for a core")
def test_threads_that_share_a_core_with_another_process_wait_half_of_the_time() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:  # inherits the core
            time.sleep(0.1)
            before, start = scheduled_seconds(), time.thread_time()
            while time.thread_time() < start + 0.1:
                pass
            ran, waited = (now - then for now, then in zip(scheduled_seconds(), before, strict=True))
            other.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert ran == pytest.approx(0.1, abs=0.05)
    assert waited > 0.04
