"""CPU cores, and the threads of torch and of nmtkit's compiled code."""

import os

import torch

from nmtkit.machine.cgroups import cpu_limits
from nmtkit.machine.torchrun import place_or_alone


def available_cores() -> int:
    """CPU cores that this process may use, at least 1. A cluster or a container may limit them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cores, *cpu_limits()])))


def set_threads(threads: int | None) -> None:
    """Set the CPU threads of this process; by default torch's number, but at most its share of the available cores.

    torch does not know the limit of a container, above which its threads would wait for each other.
    """
    if threads is None:
        threads = max(1, available_cores() // place_or_alone().local_size)
        if threads >= torch.get_num_threads():
            return
    torch.set_num_threads(threads)
