"""The machine and the software, the rates of a matrix product and of a copy, and the costs of launches."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import nmtkit
from gpu.measuring import synchronize
from nmtkit.machine.precision import resolve_device, resolve_precision
from nmtkit.model.kernels import loss_kernel_on
from nmtkit.training.cost import peak_flops

_PACKAGES = ("torch", "triton", "ctranslate2")
_RUNS = 10  # of a product or a copy
_LAUNCHES = 2000
_CHEAP_LAUNCH = 10e-6  # seconds


def show(device_name: str, product_size: int) -> None:
    """Print the facts, and whether launches matter."""
    for name, fact in describe(device_name, product_size).items():
        print(f"{name}: {fact}", flush=True)
    device = resolve_device(device_name)
    x = torch.zeros(8, device=device)

    def launch() -> None:
        for _ in range(_LAUNCHES):
            x.add_(1)

    launch()
    synchronize(device)
    start = time.perf_counter()
    launch()
    host = (time.perf_counter() - start) / _LAUNCHES
    node = _seconds(captured(launch, device), device) / _LAUNCHES
    print(f"a launch: {1e6 * host:.1f} µs of the host; a node of a graph: {1e6 * node:.2f} µs", flush=True)
    verdict = "launches are cheap: kernels first" if host < _CHEAP_LAUNCH else "launches are dear: graphs first"
    print(f"decision: {verdict}", flush=True)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as one CUDA graph, on a GPU."""
    if device.type == "cpu":
        return work
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def describe(device_name: str, product_size: int) -> dict[str, Any]:
    """The facts by name; `product_size` is the width of the matrices that are multiplied."""
    device = resolve_device(device_name)
    facts: dict[str, Any] = {"device": str(device), "python": platform.python_version(), "cores": os.cpu_count()}
    facts["nmtkit"] = nmtkit_version(Path(nmtkit.__file__).parents[1])
    facts |= {package: _version(package) for package in _PACKAGES}
    facts["precision of --precision auto"] = str(resolve_precision("auto", device)).removeprefix("torch.")
    if device.type == "cuda":
        facts |= _gpu_facts(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(product_size, product_size, device=device, dtype=dtype)
    facts[f"{dtype} product, TFLOP/s"] = round(2e-12 * product_size**3 / _seconds(lambda: x @ x, device), 2)
    copied = 2 * x.numel() * x.element_size()  # bytes read and written
    facts["copy, GB/s"] = round(1e-9 * copied / _seconds(x.clone, device), 1)
    return facts


def nmtkit_version(folder: Path) -> str:
    """The version, and the commit if nmtkit is run from a `folder` that is a checkout of git."""
    if not (folder / ".git").exists() or shutil.which("git") is None:
        return nmtkit.__version__
    words = ("describe", "--always", "--exclude=*", "--abbrev=12", "--dirty= + changes")
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=60, check=False)
    return f"{nmtkit.__version__} {done.stdout}".strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gpu_facts(device: torch.device) -> dict[str, Any]:
    """Facts of a GPU and of torch's settings for it."""
    properties = torch.cuda.get_device_properties(device)
    peak = peak_flops(properties.name, half=True)
    return {
        "GPU": properties.name,
        "memory, GiB": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "compute capability": f"{properties.major}.{properties.minor}",
        "nominal peak of 16 bits, TFLOP/s": peak and peak / 1e12,
        "driver and clocks": _nvidia_smi(),
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "attention allowed": ", ".join(_allowed_attention()),
        "loss kernel": "in use" if loss_kernel_on(device) else "not usable",
    }


def _allowed_attention() -> list[str]:
    """The fused attention that torch may choose from."""
    backends: Any = torch.backends.cuda
    allowed = {
        "flash": backends.flash_sdp_enabled(),
        "memory-efficient": backends.mem_efficient_sdp_enabled(),
        "cuDNN": backends.cudnn_sdp_enabled(),
    }
    return [name for name, is_allowed in allowed.items() if is_allowed]


def _nvidia_smi() -> str:
    """Driver, clocks of the multiprocessors (now and highest), power limit."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: no nvidia-smi"
    query = "--query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit"
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout or done.stderr).strip()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median time of `work` after a warm-up."""
    times = []
    for _ in range(_RUNS + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
