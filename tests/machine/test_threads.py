"""The number of CPU threads of a process."""

import os
from collections.abc import Iterator

import pytest
import torch

from nmtkit.machine import threads
from nmtkit.machine.threads import available_cores, set_threads
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
