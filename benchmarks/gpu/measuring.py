"""Times of kernels, and of repeated runs of the same work with the kernels that a GPU ran and its idle time."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gpu.isolation import describe_error
from nmtkit.machine.precision import resolve_device, resolve_precision

_KERNELS = 8  # of a case, those that take most of the time
HEAD = 64  # width of a head of single kernels
_LONGEST_NAME = 70  # characters of a kernel's name


@dataclass(frozen=True)
class Profile:
    """A short run under torch's profiler."""

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

    def __str__(self) -> str:
        facts = [f"{self.rate:,.0f} tokens/s ({min(self.rates):,.0f} to {max(self.rates):,.0f})"]
        if self.utilization is not None:
            facts.append(f"utilization {self.utilization:.1%}")
        if self.profile.idle is not None:
            facts.append(f"idle {self.profile.idle:.1%}")
        if self.peak_memory is not None:
            facts.append(f"{self.peak_memory / 2**30:.1f} GiB")
        facts += [self.profile.failure, *(f"{name} {share:.0%}" for name, share in self.profile.kernels.items())]
        return "; ".join(filter(None, facts))


@dataclass(frozen=True)
class KernelSetting:
    """The sizes of the tensors."""

    device: str
    precision: str
    tokens: int  # of an update on each side
    vocabulary: int
    heads: tuple[int, ...]  # of each model, 64 wide
    sentences: tuple[int, ...]  # of a decoding step

    def random(self, *shape: int) -> Tensor:
        """Random numbers in the precision of products."""
        device = resolve_device(self.device)
        return torch.randn(shape, device=device).to(resolve_precision(self.precision, device))

    def time(self, name: str, work: Callable[[], object], leaves: Sequence[Tensor] = (), flop: float = 0.0) -> float:
        """Print and return the median time in milliseconds; infinite for a failure."""
        try:
            work()
            start = time.perf_counter()
            if self.device == "cpu":
                work()
                found = 1e3 * (time.perf_counter() - start)
            else:
                options = {"warmup": 10, "rep": 60, "grad_to_none": list(leaves) or None, "return_mode": "median"}
                found = float(import_module("triton.testing").do_bench(work, **options))
        except Exception as error:
            print(f"{name}: failed: {describe_error(error)}", flush=True)
            return math.inf
        print(f"{name}: {1e3 * found:,.1f} µs{f', {1e-9 * flop / found:,.0f} TFLOP/s' if flop else ''}", flush=True)
        return found


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
    if device.type != "cuda":
        return Profile()
    with profile(activities=[ProfilerActivity.CUDA]) as kernels:
        start = time.perf_counter()
        sample()
        synchronize(device)
        seconds = time.perf_counter() - start
    times = {event.key: event.self_device_time_total / 1e6 for event in kernels.key_averages()}
    busy = sum(times.values())
    if not busy:
        return Profile(failure="the profiler saw no kernels")
    largest = sorted(times, key=lambda name: times[name], reverse=True)[:_KERNELS]
    shares = {name[:_LONGEST_NAME]: times[name] / busy for name in largest}
    return Profile(max(0.0, 1 - busy / seconds), shares)
