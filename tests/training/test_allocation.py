"""Settings of malloc and of oneDNN for training on a CPU."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import resource
import torch
from nmtkit.machine.memory import keep_freed_memory

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


# The growth in pages over products of many shapes in bf16, with the caches limited if there is an argument.
SHAPES = """
import sys
from pathlib import Path
import torch
from nmtkit.machine.memory import limit_kernel_caches

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

torch.set_num_threads(1)
if sys.argv[1:]:
    limit_kernel_caches()
weight, before = torch.ones(64, 32, dtype=torch.bfloat16), pages()
for rows in range(10, 510):
    torch.nn.functional.linear(torch.ones(rows, 32, dtype=torch.bfloat16), weight)
print(pages() - before)
"""


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bf16 on this machine")
def test_products_of_many_shapes_in_bf16_keep_few_kernels() -> None:
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}

    def growth(arguments: list[str], **settings: str) -> int:
        command, env = [sys.executable, "-c", SHAPES, *arguments], environment | settings
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout)

    unlimited = growth([])
    assert growth(["limited"]) < unlimited / 2
    of_user = {"DNNL_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"}
    assert growth(["limited"], **of_user) > unlimited / 2
