"""Memory that training on a CPU reuses from one update to the next."""

import ctypes
import os

from nmtkit.errors import UserError
from nmtkit.wording import quoted

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # numbers of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc refuses more
_NEVER = 2**31 - 1
_KERNELS = 128  # more than the products of one update have shapes


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next update, where the C library is glibc.

    Otherwise it returns most of the memory to the kernel after each backward pass, and the next update waits until the
    kernel has filled it with zeros again. Tensors of more than 32 MiB are not kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TOP_PAD, _LARGEST_MMAP_THRESHOLD)


def limit_kernel_caches() -> None:
    """Limit the kernels that torch keeps for products in bf16 on a CPU.

    Call it before the first product; later, it has no effect. oneDNN compiles a kernel for each shape, and the shapes
    of sentences rarely repeat (docs/how-to/memory.md). oneDNN and torch's interface to it have a cache each. Settings
    of the user win. Raises UserError for one that is no number.
    """
    if not {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"} & os.environ.keys():
        os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(_KERNELS)
    capacity = os.environ.setdefault("LRU_CACHE_CAPACITY", str(_KERNELS))
    if not capacity.removeprefix("-").isdecimal():  # torch would crash
        raise UserError(f"LRU_CACHE_CAPACITY is {quoted(capacity)}: set it to a whole number")
