"""Benchmark: nmtkit's CPU operators vs. torch's: dropout, norm, attention, loss, and products of the compiled search.

    python benchmarks/operators.py [--threads 1] [--precision bf16]

Each row is the median CPU time of forward and backward pass in milliseconds, for nmtkit and for torch. CPU time is
more reliable than wall time on a busy machine. With `--precision bf16` both compute with activations in bf16, under
autocast. Products are forward only, in GFLOP/s.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from nmtkit.machine import native_build
from nmtkit.machine.threads import set_threads, thread_count
from nmtkit.model.attention import attend, join_heads, split_heads
from nmtkit.model.dropout import Dropout, dropout
from nmtkit.model.residual import LayerNorm, add_and_norm
from nmtkit.model.short_attention import Sizes, attend_short
from nmtkit.training.loss import projected_cross_entropy


def milliseconds(work: Callable[[], Tensor], inputs: list[Tensor], runs: int = 9) -> float:
    """Median CPU time of `work` and its backward pass, in milliseconds."""
    times = []
    for _ in range(runs + 1):
        for tensor in inputs:
            tensor.grad = None
        start = time.process_time()
        work().backward()  # type: ignore[no-untyped-call]
        times.append(time.process_time() - start)
    return statistics.median(times[1:]) * 1000


def compare(name: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], inputs: list[Tensor]) -> None:
    """Measure both operators and print one row."""
    mine, other = milliseconds(ours, inputs), milliseconds(theirs, inputs)
    click.echo(f"{name:44s} {mine:9.2f} {other:9.2f} {other / mine:8.2f}x")


def compare_attention(length: int, kind: torch.dtype) -> None:
    """Attention of about 1,024 tokens, 8 heads of 64, from their projections: compiled, and by torch."""
    batch = 1024 // length
    qkv = torch.randn(batch, length, 3 * 512, dtype=kind, requires_grad=True)
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)

    def by_torch() -> Tensor:
        q, k, v = (split_heads(x, 8) for x in torch.split(qkv, 512, dim=-1))
        return join_heads(attend(q, k, v, mask)).sum()

    name = f"attention, {batch} sentences of {length}"
    compare(name, lambda: attend_short((qkv,), Sizes(8, 64, 64), causal=False, mask=mask).sum(), by_torch, [qkv])


def gflops(linear: Callable[[Tensor], object], columns: int, outputs: int, rows: int, runs: int = 15) -> float:
    """The rate of the median product of that many rows."""
    x, times = torch.randn(rows, columns), []
    repeats = max(1, 500 // rows)
    for _ in range(runs):
        start = time.process_time()
        for _ in range(repeats):
            linear(x)
        times.append((time.process_time() - start) / repeats)
    return 2e-9 * rows * columns * outputs / statistics.median(times)


@torch.inference_mode()
def products(columns: int, outputs: int) -> None:
    """Print the rates of products of few rows and of many, by torch and compiled."""
    weight, bias = torch.randn(outputs, columns), torch.randn(outputs)
    fp32, int8 = (native_build.native.matrix(weight.numpy(), bias.numpy(), each) for each in ("fp32", "int8"))

    def multiply(matrix: Any, x: Tensor) -> None:
        native_build.native.multiply(matrix, x.numpy(), np.empty((len(x), outputs), np.float32), thread_count())

    ways: dict[str, Callable[[Tensor], object]] = {
        "torch, fp32": lambda x: F.linear(x, weight, bias),
        "compiled, fp32": lambda x: multiply(fp32, x),
        "compiled, int8 with its scales": lambda x: multiply(int8, x),
    }
    counts = (1, 4, 60, 480)
    click.echo(f"\n{f'GFLOP/s, rows x {columns} x {outputs}':44s}" + "".join(f"{count:6d}" for count in counts))
    for name, linear in ways.items():
        rates = (gflops(linear, columns, outputs, count) for count in counts)
        click.echo(f"{name:44s}" + "".join(f"{rate:6.0f}" for rate in rates))


@click.command()
@click.option("--threads", default=1, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
def main(threads: int, precision: str) -> None:
    """Compare nmtkit's operators with torch's."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    if not native_build.available("fp32"):
        raise click.ClickException("nmtkit is not compiled for this CPU: install it again with a C++ compiler")
    set_threads(threads)
    torch.manual_seed(1)
    with torch.autocast("cpu", kind, enabled=kind != torch.float32):
        training_operators(kind)
    products(512, 2048)


def training_operators(kind: torch.dtype) -> None:
    """Print a row for each operator of training."""
    click.echo(f"{'forward + backward, ms of CPU time':44s} {'nmtkit':>9s} {'torch':>9s} {'ratio':>9s}")
    x = torch.randn(1024, 512, dtype=kind, requires_grad=True)
    compare("dropout (1024, 512)", lambda: dropout(x, 0.1).sum(), lambda: F.dropout(x, 0.1).sum(), [x])
    y, norm, drop = torch.randn(1024, 512, dtype=kind, requires_grad=True), LayerNorm(512), Dropout(0.1)
    compare(
        "LayerNorm(x + dropout(y)) (1024, 512)",
        lambda: add_and_norm(x, y, drop, norm).sum(),
        lambda: norm(x + F.dropout(y, 0.1)).sum(),
        [x, y],
    )
    for length in (15, 32, 48, 64):
        compare_attention(length, kind)
    hidden = torch.randn(1024, 256, dtype=kind, requires_grad=True)
    matrix = torch.randn(8000, 256, requires_grad=True)
    target = torch.randint(8000, (1024,))
    compare(
        "projection and loss, 1024 tokens x 8000",
        lambda: projected_cross_entropy(hidden, matrix, target, 0.1)[0],
        lambda: F.cross_entropy(F.linear(hidden, matrix), target, label_smoothing=0.1, reduction="sum"),
        [hidden, matrix],
    )


if __name__ == "__main__":
    main()
