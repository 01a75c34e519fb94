"""Repeated runs of the same work, with the kernels that a GPU ran and the time that it was idle."""

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.profiler import ProfilerActivity, profile

from gpu.isolation import describe_error

_KERNELS = 8  # of a case, those that take most of the time
_LONGEST_NAME = 70  # characters of a kernel's name
_ATTENTION = re.compile(r"aten::_scaled_dot_product_(?!.*_backward)(\w+)")


@dataclass(frozen=True)
class Profile:
    """A short run under torch's profiler."""

    attention: list[str] = field(default_factory=list)  # operators that computed fused attention
    idle: float | None = None  # fraction of the time without a kernel
    kernels: dict[str, float] = field(default_factory=dict)  # fraction of the kernels' time, largest first
    failure: str = ""


@dataclass(frozen=True)
class Measurement:
    """Repeated runs of the same work."""

    rates: list[float]  # tokens a second of each run
    peak_memory: int | None = None  # bytes of a GPU that torch has reserved
    utilization: float | None = None  # of the device's peak rate, by the model's operations on real tokens
    profile: Profile = field(default_factory=Profile)

    @property
    def rate(self) -> float:
        """Tokens a second: the median."""
        return statistics.median(self.rates)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has computed everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(work: Callable[[], int], sample: Callable[[], object], repeats: int, device: torch.device) -> Measurement:
    """Time `work`, which returns its number of tokens, after a warm-up by exactly the same work; profile `sample`."""
    work()
    synchronize(device)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = work()
        synchronize(device)
        rates.append(tokens / (time.perf_counter() - start))
    memory = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    try:
        found = _profile(sample, device)
    except Exception as error:  # the rates count without it
        found = Profile(failure=describe_error(error))
    return Measurement(rates, memory, profile=found)


def _profile(sample: Callable[[], object], device: torch.device) -> Profile:
    with profile(activities=[ProfilerActivity.CPU]) as operators:
        sample()
        synchronize(device)
    names = (_ATTENTION.fullmatch(event.key) for event in operators.key_averages())
    attention = sorted({name[1] for name in names if name})
    if device.type != "cuda":
        return Profile(attention)
    with profile(activities=[ProfilerActivity.CUDA]) as kernels:  # alone, because the other slows down the host
        start = time.perf_counter()
        sample()
        synchronize(device)
        seconds = time.perf_counter() - start
    times = {event.key: event.self_device_time_total / 1e6 for event in kernels.key_averages()}
    busy = sum(times.values())
    if not busy:
        return Profile(attention, failure="the profiler saw no kernels")
    largest = sorted(times, key=lambda name: times[name], reverse=True)[:_KERNELS]
    shares = {name[:_LONGEST_NAME]: times[name] / busy for name in largest}
    return Profile(attention, max(0.0, 1 - busy / seconds), shares)
