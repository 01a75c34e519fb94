"""Errors of NCCL, which is not run, and their messages."""

import pytest
import torch
from fake_gpu import GPU
from torch import distributed

from nmtkit.errors import RunError
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.training import ranks
from nmtkit.training.ranks import join


@pytest.fixture
def without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two ranks on one machine, whose process groups are not made."""
    ranks_of_torchrun = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**ranks_of_torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(ranks, "_fresh_store", lambda rank, size: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(distributed, name, lambda *_, **__: None)


@pytest.mark.usefixtures("without_nccl")
def test_lack_of_memory_in_nccl_is_no_lost_connection() -> None:
    error = distributed.DistBackendError("ncclUnhandledCudaError: Last error: Cuda failure 2 'out of memory'")
    assert not is_out_of_memory(error)  # its connections cannot be used again
    with pytest.raises(RunError, match="lower --max-tokens"), join(GPU):
        raise error
    with pytest.raises(RunError, match="connection to another process"), join(GPU):
        raise distributed.DistBackendError("NCCL communicator was aborted on rank 1")
