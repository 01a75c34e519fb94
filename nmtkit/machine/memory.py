"""Free memory, out-of-memory errors of torch, and settings of malloc and oneDNN for training on a CPU."""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit.machine import cgroups as control_groups
from nmtkit.machine.device import is_on_gpu
from nmtkit.machine.torchrun import place_or_alone
from nmtkit.wording import format_bytes

if TYPE_CHECKING:
    import torch

# Messages of plain RuntimeErrors: from the CPU allocator, from libraries without memory for workspaces or for
# themselves, from the driver.
_MESSAGES = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
)
_KERNELS = 128  # more than the number of shapes of products in one update
_LARGE_SHARE = 0.1  # of a GPU's memory; its driver and libraries use less
# By version of control groups: the limit, the use, and in memory.stat the page cache that can be reclaimed.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that a device is out of memory, so that a smaller computation may succeed. Lack of memory
    in a communication library leaves its connections unusable, and does not count."""
    torch: Any = sys.modules.get("torch")  # which has been imported if the error is one of its own
    if torch and isinstance(error, torch.distributed.DistError):
        return False
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in _MESSAGES)


def out_of_memory(device: "torch.device | str") -> str:
    """Return the beginning of an error message, with the memory that other processes use on a GPU if it is large."""
    if is_on_gpu(str(device)):
        import torch

        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        if others > _LARGE_SHARE * total:
            used = f"{format_bytes(others)} of the {format_bytes(total)} of {device}"
            return f"out of memory (other processes use {used})"
    return "out of memory"


def free_memory(device: "torch.device | str") -> float:
    """Return the free bytes of a GPU, or this process's share of the free main memory."""
    if is_on_gpu(str(device)):
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free = 1024 * int(fields["MemAvailable"].split()[0])
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    free = min([free, *_left_of_control_groups(), *_left_of_address_space()])
    return free / place_or_alone().local_size


def unused_memory(device: str) -> int:
    """Return the bytes of a GPU that torch has reserved but does not use."""
    import torch

    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _left_of_control_groups(root: Path = Path("/")) -> Iterator[int]:
    """Yield the free bytes of each control group with a limit. Page cache counts as free, as in MemAvailable."""
    for version, folder in control_groups.folders("memory", root):
        most, used, caches = _FILES[version]
        with contextlib.suppress(OSError, KeyError, ValueError):  # missing, or "max"
            fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            limit, usage = (int((folder / name).read_text()) for name in (most, used))
            yield max(0, limit - usage + int(fields[caches]))


def _left_of_address_space() -> Iterator[int]:
    """Yield the free bytes under `ulimit -v`, if it is set."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield max(0, limit - int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))


def keep_freed_memory() -> None:
    """Make glibc's malloc keep freed memory for the next update. Does nothing with other C libraries.

    Otherwise the kernel must fill most memory with zeros for every update. Memory of tensors above 32 MiB is not kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        never, largest = 2**31 - 1, 32 << 20  # bytes; glibc rejects larger thresholds
        for number, value in ((-1, never), (-3, largest), (-2, largest)):  # trim and mmap threshold, top pad: malloc.h
            mallopt(number, value)


def limit_kernel_caches() -> None:
    """Limit the number of kernels that torch caches for bf16 products on a CPU. The user's settings take precedence.

    Call this before the first product; later it has no effect. oneDNN compiles a kernel for each shape, and the shapes
    of sentences rarely repeat (docs/how-to/training-speed.md). oneDNN and torch's interface to it each have a cache.
    """
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(_KERNELS))
