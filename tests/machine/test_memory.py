"""The memory of devices, as messages name it."""

import pytest
import torch

from nmtkit.machine.memory import out_of_memory

GPU, TOTAL = torch.device("cuda", 1), 80 * 10**9


@pytest.mark.parametrize(
    ("free", "own", "said"),
    [
        (1, 9, "out of memory (other processes use 70 GB of the 80 GB of cuda:1)"),
        (1, 78, "out of memory"),
        (75, 0, "out of memory"),  # the driver and libraries use some
    ],
)
def test_an_error_names_the_share_of_a_gpu_that_others_use_if_it_is_large(
    free: int, own: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 10**9, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * 10**9)
    assert out_of_memory(GPU) == said
    assert out_of_memory(torch.device("cpu")) == "out of memory"
