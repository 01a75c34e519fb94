"""The process groups of runs on GPUs. NCCL is recorded, not run."""

from typing import Any

import pytest
import torch
from fake_gpu import GPU
from torch import distributed

from nmtkit.errors import RunError
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.training import ranks
from nmtkit.training.ranks import join

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls to torch.distributed of the first of two ranks on one machine."""
    made: Calls = []

    def record(name: str, result: Any = None) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append((name, arguments, options))
            return result

        return call

    ranks_of_torchrun = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**ranks_of_torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(ranks, "_fresh_store", lambda rank, size: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name in ("init_process_group", "all_reduce", "all_gather_object", "broadcast_object_list"):
        monkeypatch.setattr(distributed, name, record(name))
    monkeypatch.setattr(distributed, "new_group", record("new_group", "hosts"))
    return made


def test_nccl_knows_its_device_and_values_of_hosts_go_over_gloo(calls: Calls) -> None:
    with join(GPU) as joined:
        assert joined.device == torch.device("cuda", 1)
        joined.sum([1.0])
        joined.gather("value")
        joined.run_on_main(lambda: "value")
    (_, nccl, options), (_, _, gloo), *exchanges = calls
    assert nccl == ("nccl",)
    assert options["device_id"] == torch.device("cuda", 1)
    assert gloo["backend"] == "gloo"
    assert gloo["timeout"] > options["timeout"]
    assert [name for name, *_ in exchanges] == ["all_reduce", "all_gather_object", "broadcast_object_list"]
    assert {options["group"] for _, _, options in exchanges} == {"hosts"}
    assert exchanges[0][1][0].device.type == "cpu"


def test_a_cpu_run_has_one_process_group(calls: Calls) -> None:
    with join(torch.device("cpu")) as joined:
        joined.sum([1.0])
    assert [name for name, *_ in calls] == ["init_process_group", "all_reduce"]
    assert calls[0][1] == ("gloo",)
    assert calls[1][2]["group"] is None


def test_lack_of_memory_in_nccl_is_no_lost_connection(calls: Calls) -> None:
    error = distributed.DistBackendError("ncclUnhandledCudaError: Last error: Cuda failure 2 'out of memory'")
    assert not is_out_of_memory(error)  # its connections cannot be used again
    with pytest.raises(RunError, match="lower --max-tokens"), join(GPU):
        raise error
    with pytest.raises(RunError, match="connection to another process"), join(GPU):
        raise distributed.DistBackendError("NCCL communicator was aborted on rank 1")
