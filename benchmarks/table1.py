"""Table 1 of the paper, measured: time and memory of a layer as sequence length or layer width grows.

    python benchmarks/table1.py

Time is the median CPU time of a forward and backward pass of one sequence, in fp32 with one thread. Memory is the peak
of torch's CPU allocator during the pass, without the layer and its input. It comes from torch's profiler, so memory
that other libraries allocate is not included.

The complexities of Table 1 count operations between positions. So attention is measured both alone, with given queries,
keys and values, and as a whole layer with its four projections, which add O(n·d²).

The paper's r is the size of the neighborhood of restricted attention. A window of w positions on each side has
r = 2·w + 1.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmtkit.model.attention import SelfAttention, attend, attend_blockwise
from nmtkit.model.config import TransformerConfig

HEAD = 64  # width of a head, as in the paper: a wider layer has more heads
KERNEL = 3  # width of the convolution, in positions
FITTED = 3  # exponents are fitted to this many of the largest sizes

Work = Callable[[], Tensor]


class Layer(NamedTuple):
    """A row of Table 1."""

    name: str
    complexity: str  # per layer, as in the paper
    length_exponent: int  # exponent of n
    width_exponent: int  # exponent of d
    make: Callable[[int, int, int], tuple[Work, list[Tensor]]]  # (n, d, window) -> forward, tensors with gradients


def heads_of(length: int, width: int) -> list[Tensor]:
    """Random queries, keys and values (1, H, n, 64)."""
    return [torch.randn(1, width // HEAD, length, HEAD, requires_grad=True) for _ in range(3)]


def full(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    q, k, v = inputs = heads_of(length, width)
    return lambda: attend(q, k, v, None), inputs


def restricted(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    q, k, v = inputs = heads_of(length, width)
    return lambda: attend_blockwise(q, k, v, None, window, causal=False, dropout_rate=0.0), inputs


def whole(restrict: bool) -> Callable[[int, int, int], tuple[Work, list[Tensor]]]:
    def make(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
        config = TransformerConfig(d_model=width, heads=width // HEAD, attention_window=window if restrict else None)
        layer = SelfAttention(config, causal=False)
        x = torch.randn(1, length, width, requires_grad=True)
        return lambda: layer(x, None), [x, *layer.parameters()]

    return make


def recurrent(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    layer = nn.LSTM(width, width, batch_first=True)
    x = torch.randn(1, length, width, requires_grad=True)
    return lambda: layer(x)[0], [x, *layer.parameters()]


def convolutional(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    layer = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)
    x = torch.randn(1, width, length, requires_grad=True)
    return lambda: layer(x), [x, *layer.parameters()]


LAYERS = [
    Layer("self-attention", "O(n²·d)", 2, 1, full),
    Layer("self-attention, restricted", "O(r·n·d)", 1, 1, restricted),
    Layer("recurrent (LSTM)", "O(n·d²)", 1, 2, recurrent),
    Layer(f"convolutional (k = {KERNEL})", "O(k·n·d²)", 1, 2, convolutional),
    Layer("self-attention, whole layer", "O(n²·d + n·d²)", 2, 2, whole(restrict=False)),
    Layer("restricted, whole layer", "O(r·n·d + n·d²)", 1, 2, whole(restrict=True)),
]


class Cost(NamedTuple):
    """The cost of one forward and backward pass."""

    milliseconds: float
    mebibytes: float


def cost(layer: Layer, length: int, width: int, window: int, runs: int) -> Cost:
    """Measure a layer of this size: median CPU time of `runs` passes, and peak memory."""
    torch.manual_seed(1)
    forward, inputs = layer.make(length, width, window)

    def work() -> None:
        output = forward()
        output.backward(torch.ones_like(output))  # type: ignore[no-untyped-call]

    times = []
    for _ in range(runs + 1):  # the first is for warm-up
        for tensor in inputs:
            tensor.grad = None
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    for tensor in inputs:
        tensor.grad = None
    return Cost(statistics.median(times[1:]) * 1000, peak_bytes(work) / 2**20)


def peak_bytes(work: Callable[[], None]) -> int:
    """Peak memory of torch's CPU allocator during `work`, without what was allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    recorded = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    allocated = peak = 0
    for _, change in changes:
        allocated += change
        peak = max(peak, allocated)
    return peak


def neighborhood(window: int) -> int:
    """The paper's r: the number of positions that a position attends to, itself included."""
    return 2 * window + 1


def doubling(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent b of y = a·x^b, fitted by least squares to the logarithms."""
    return statistics.linear_regression(list(map(math.log, xs)), list(map(math.log, ys))).slope


class Sweep(NamedTuple):
    """The costs of each layer over a range of one size."""

    variable: str
    sizes: list[int]
    costs: dict[str, list[Cost]]  # by name of the layer

    def exponent(self, layer: str, quantity: str) -> float:
        return exponent(self.sizes[-FITTED:], [getattr(one, quantity) for one in self.costs[layer]][-FITTED:])


def show_fits(lengths: Sweep, widths: Sweep) -> None:
    """Print the exponents and those of the paper as a Markdown table."""
    click.echo("| layer | in the paper | time ~ n^ (paper) | time ~ d^ (paper) | memory ~ n^ | memory ~ d^ |")
    click.echo("|---|---|---|---|---|---|")
    for layer in LAYERS:
        over_n, over_d = (sweep.exponent(layer.name, "milliseconds") for sweep in (lengths, widths))
        memory = [f"{sweep.exponent(layer.name, 'mebibytes'):.2f}" for sweep in (lengths, widths)]
        times = f"{over_n:.2f} ({layer.length_exponent}) | {over_d:.2f} ({layer.width_exponent})"
        click.echo(f"| {layer.name} | {layer.complexity} | {times} | {' | '.join(memory)} |")


def show_costs(sweep: Sweep, quantity: str, unit: str) -> None:
    """Print the measured costs as a Markdown table."""
    click.echo(f"\n| {unit}, {sweep.variable} = | {' | '.join(map(str, sweep.sizes))} |")
    click.echo("|---" * (len(sweep.sizes) + 1) + "|")
    for name, costs in sweep.costs.items():
        click.echo(f"| {name} | {' | '.join(f'{getattr(one, quantity):.3g}' for one in costs)} |")


@click.command()
@click.option("--max-length", default=4096, show_default=True, help="Largest n; the smallest is 64.")
@click.option("--max-width", default=1024, show_default=True, help="Largest d; the smallest is 64.")
@click.option("--length", default=1024, show_default=True, help="n in the sweep over d.")
@click.option("--width", default=256, show_default=True, help="d in the sweep over n.")
@click.option(
    "--window",
    default=32,
    show_default=True,
    help="Positions that restricted attention sees on each side; the paper's r is 2 · window + 1.",
)
@click.option("--runs", default=5, show_default=True, help="Passes of each layer and size, after one for warm-up.")
@click.option("--threads", default=1, show_default=True)
def main(max_length: int, max_width: int, length: int, width: int, window: int, runs: int, threads: int) -> None:
    """Measure the layers and print Table 1 with fitted exponents."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence the profiler's own messages
    torch.set_num_threads(threads)
    sizes = doubling(64, max_length)
    lengths = Sweep("n", sizes, {one.name: [cost(one, n, width, window, runs) for n in sizes] for one in LAYERS})
    sizes = doubling(64, max_width)
    widths = Sweep("d", sizes, {one.name: [cost(one, length, d, window, runs) for d in sizes] for one in LAYERS})
    click.echo(f"Sweep over n: d = {width}. Sweep over d: n = {length}.")
    click.echo(f"Restricted attention: window = {window}, so r = 2 · {window} + 1 = {neighborhood(window)}.")
    click.echo(f"Exponents are fitted to the {FITTED} largest sizes.\n")
    show_fits(lengths, widths)
    for sweep in (lengths, widths):
        show_costs(sweep, "milliseconds", "ms")
        show_costs(sweep, "mebibytes", "MiB")


if __name__ == "__main__":
    main()
