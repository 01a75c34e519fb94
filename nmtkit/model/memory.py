"""How much memory is free, and which of torch's many errors mean that it has run out."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePath

import torch

# Of those that are plain RuntimeErrors: a CPU's allocator, the workspaces of libraries, the driver itself.
_WORDS = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether less memory would have avoided an error, on whatever device."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


def free_memory(device: torch.device) -> float:
    """Bytes: of a GPU; or of main memory, as much of it as each process on this machine can have."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        facts = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free = 1024 * int(facts["MemAvailable"].split()[0])
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    free = min([free, *_left_of_cgroups(Path("/")), *_left_of_address_space()])
    return free / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _left_of_cgroups(root: Path) -> Iterator[int]:
    """Bytes that a container or a batch system leaves this process, by each control group that it is in.

    What caches of files take counts as free, as it does in MemAvailable.
    """
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            top, most, used, caches = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif controllers == "memory":
            top, most, used, caches = (
                *(root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                *("memory.usage_in_bytes", "total_inactive_file"),
            )
        else:
            continue
        own = PurePath(path.lstrip("/"))
        for folder in (top / part for part in (own, *own.parents)):
            with contextlib.suppress(OSError, KeyError, ValueError):  # not there, or "max"
                facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                limit, usage = (int((folder / name).read_text()) for name in (most, used))
                yield max(0, limit - usage + int(facts[caches]))


def _left_of_address_space() -> Iterator[int]:
    """Bytes that `ulimit -v` leaves this process."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield max(0, limit - int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
