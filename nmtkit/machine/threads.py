"""CPU cores, and the threads of nmtkit's compiled code and of torch."""

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from nmtkit.machine.cgroups import cpu_limits
from nmtkit.machine.torchrun import place_or_alone

_threads: int | None = None  #: of this process, once they are set


def available_cores() -> int:
    """Return the number of CPU cores that this process may use, at least 1. A cluster or container may limit it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cores, *cpu_limits()])))


def set_threads(threads: int | None) -> None:
    """Set the CPU threads of this process. The default is torch's number, at most this process's share of the cores:
    torch does not know the limit of a container."""
    global _threads
    if threads is None:
        torch = _torch()
        default = torch.get_num_threads() if torch else _default()
        threads = min(default, max(1, available_cores() // place_or_alone().local_size))
    _threads = threads
    apply_to_torch()


def thread_count() -> int:
    """Return the number of CPU threads of this process."""
    if _threads is None:
        torch = _torch()
        return int(torch.get_num_threads()) if torch else _default()
    return _threads


def apply_to_torch() -> None:
    """Apply the number of threads to torch, if one was set, because torch may be imported after `set_threads`."""
    torch = _torch()
    if torch and _threads is not None and torch.get_num_threads() != _threads:
        torch.set_num_threads(_threads)


def scheduled_seconds() -> tuple[float, float]:
    """Return how long the threads of this process ran, and how long they waited for a core; zeros if unknown."""
    times = []
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            times.append(path.read_text().split())
    return sum(int(ran) for ran, _, _ in times) / 1e9, sum(int(waited) for _, waited, _ in times) / 1e9


def physical_cores() -> int:
    """Return the number of physical cores of this process, counting cores with several hardware threads once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    siblings = set()
    for number in os.sched_getaffinity(0):
        try:
            siblings.add(Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text())
        except OSError:
            siblings.add(str(number))
    return len(siblings)


@cache
def _default() -> int:
    """Return torch's default number of threads, from the environment or one for each core."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdecimal() and int(first) > 0 else physical_cores()


def _torch() -> Any:
    return sys.modules.get("torch")
