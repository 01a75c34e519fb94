"""Kernels that are measured on GPUs but not in use, run by Triton's interpreter on a CPU."""

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("the interpreter must not replace the compiler of other tests", allow_module_level=True)
pytest.importorskip("triton")

from gpu.checks import errors


def test_the_results_and_gradients_of_each_kernel_match_torch() -> None:
    found = errors(torch.device("cpu"), torch.float32)
    assert {name: error for name, error in found.items() if not error < 1e-5} == {}
