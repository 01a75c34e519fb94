"""The setting of malloc for training on a CPU."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from nmtkit.training.allocation import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**20) for _ in range(50)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
keep_freed_memory()
print(*(faults() for _ in range(3)))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, _, last = map(int, result.stdout.split())
    assert last < first / 10
