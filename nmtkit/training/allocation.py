"""Memory that training on a CPU reuses from one update to the next."""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # numbers of glibc's malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc refuses more
_NEVER = 2**31 - 1


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
