"""The processes of a run that torchrun starts, one for each rank. Rank 0, the main process, writes and logs.

A run without torchrun is a group of one rank, for which every method is a plain function call.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from nmtkit.errors import NmtkitError, ReportedElsewhere, RunError, UserError
from nmtkit.machine.torchrun import place_of_process

T = TypeVar("T")

# How long ranks wait for the main process to save, validate or translate. If a process ends, its connection is closed,
# which ends the wait at once.
_PATIENCE = timedelta(days=1)
_COMMUNICATION_ON_GPU = timedelta(minutes=30)  # to sum gradients, including compilation before the first sum


class Ranks:
    """The place of this process in a run: `rank` of `size`, computing on `device`.

    Python values are exchanged between hosts, in the process group `hosts` (None for the default group), and tensors
    between devices. All methods except `report_once` are collective: all ranks must call them in the same order.
    """

    def __init__(self, device: torch.device, rank: int = 0, size: int = 1, hosts: Any = None) -> None:
        self.device, self.rank, self.size, self._hosts = device, rank, size, hosts

    def __str__(self) -> str:
        return str(self.device) if self.size == 1 else f"{self.size} × {self.device.type}"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and log lines."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks in float64. Every rank gets bit-identical sums."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor, group=self._hosts)
        return tensor.tolist()

    def sum_on_devices(self, values: Tensor) -> Tensor:
        """Sum a tensor (…) over all ranks on their devices, in place. The host does not wait for a GPU."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._hosts)
        return values

    def run_on_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process only; return its result, or raise its NmtkitError, on every rank."""
        if self.size == 1:
            return function()
        outcome: list[Any] = [None]
        if self.is_main:
            try:
                outcome = [function()]
            except NmtkitError as error:
                outcome = [error]
        distributed.broadcast_object_list(outcome, src=0, group=self._hosts)
        if isinstance(outcome[0], NmtkitError):
            raise self.report_once(outcome[0])
        result: T = outcome[0]
        return result

    def keep_on_main(self, function: Callable[[], T]) -> T | None:
        """Call a function in the main process only, and return its result there, None on the other ranks."""
        results: list[T] = []
        self.run_on_main(lambda: results.append(function()))
        return results[0] if results else None

    def run_on_all(self, function: Callable[[], T]) -> T:
        """Call a function on every rank, and return its result. An error on any rank ends all. The main process reports
        it, and names the rank unless all ranks have the same error."""
        if self.size == 1:
            return function()
        result, mine = None, None
        try:
            result = function()
        except NmtkitError as error:
            mine = error
        errors = self.gather(mine)
        for rank, met in enumerate(errors):
            if met is not None:
                alike = {str(each) for each in errors} == {str(met)}
                raise self.report_once(met if alike else type(met)(f"rank {rank}: {met}"))
        return cast("T", result)

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raise UserError on all ranks, with the first difference, unless all ranks give equal `facts`."""
        everywhere = self.gather(dict(facts))
        for rank, theirs in enumerate(everywhere):
            for name in {**everywhere[0], **theirs}:
                own, fact = theirs.get(name, "not there"), everywhere[0].get(name, "not there")
                if own != fact:
                    message = f"rank {rank} has {name} {own}, but rank 0 has {fact}: all ranks need the same"
                    raise self.report_once(UserError(message))

    def broadcast(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield copies of the main process's tensors (…) by name on every rank's device, one at a time to limit memory.
        All ranks must iterate to the end."""
        if self.size == 1:
            yield from tensors.items()
            return
        facts = self.run_on_main(lambda: {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
        for name, (shape, dtype) in facts.items():
            tensor = (
                tensors[name].to(self.device) if self.is_main else torch.empty(shape, dtype=dtype, device=self.device)
            )
            distributed.broadcast(tensor, src=0)
            yield name, tensor

    def report_once(self, error: NmtkitError) -> NmtkitError:
        """Convert an error that all ranks raise, so that only the main process reports it."""
        return error if self.is_main else ReportedElsewhere(error.exit_code)


@contextlib.contextmanager
def join(device: torch.device) -> Iterator[Ranks]:
    """Join the process group of the run, with NCCL on GPUs and gloo on CPUs, and leave it at the end. Raises UserError
    if processes and GPUs do not match, and RunError if the connection to another process is lost."""
    rank, size, local, local_size = place_of_process()
    if size == 1:
        yield Ranks(device)
        return
    if device.type == "cuda":
        if local_size > torch.cuda.device_count():
            raise UserError(
                f"{local_size} processes on a machine that has {torch.cuda.device_count()} GPUs: "
                "start torchrun with at most that many (--nproc-per-node)"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        hosts = _connect(device, rank, size)
        yield Ranks(device, rank, size, hosts)
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) and "out of memory" in str(error):
            raise RunError("no GPU memory is left for the communication between GPUs: lower --max-tokens") from error
        if isinstance(error, distributed.DistError) or "gloo" in str(error):  # gloo has no class for lost connections
            raise RunError(
                "the connection to another process of the run was lost; torchrun names the one that "
                "failed first. Run the same command to resume from the last checkpoint"
            ) from error
        raise
    finally:
        with contextlib.suppress(RuntimeError):  # fails if the other processes have ended
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _connect(device: torch.device, rank: int, size: int) -> Any:
    """Join the default process group, which sums tensors on `device`; return the group for Python values. NCCL ends a
    run whose ranks wait too long for each other, so on GPUs ranks wait in a second group, over gloo."""
    place = {"store": _fresh_store(rank, size), "rank": rank, "world_size": size}
    if device.type != "cuda":
        distributed.init_process_group("gloo", timeout=_PATIENCE, **place)
        return None
    distributed.init_process_group("nccl", timeout=_COMMUNICATION_ON_GPU, device_id=device, **place)
    return distributed.new_group(backend="gloo", timeout=_PATIENCE)


def _fresh_store(rank: int, size: int) -> Any:
    """Return torchrun's key-value store, under a prefix that is unique to this start of the processes.

    After a restart, torchrun's store still contains keys of the previous processes, and a rank that reads an old
    address waits forever. So each rank asks the main process for the prefix, with a random token, until it answers.
    """
    store, _, _ = next(rendezvous("env://"))
    if rank == 0:
        meeting = uuid.uuid4().hex
        for other in range(1, size):
            while not store.check([f"{meeting}/{other}"]):
                if store.check([f"asks/{other}"]):
                    store.set(f"answer/{other}/{store.get(f'asks/{other}').decode()}", meeting)
                time.sleep(0.01)
    else:
        word = uuid.uuid4().hex
        store.set(f"asks/{rank}", word)
        meeting = store.get(f"answer/{rank}/{word}").decode()
        store.set(f"{meeting}/{rank}", "here")
    return distributed.PrefixStore(meeting, store)  # type: ignore[attr-defined]
