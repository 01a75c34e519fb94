"""Table 1 of the paper, measured: what a layer costs in time and memory as the sequence, or the layer, grows.

    python benchmarks/table1.py --picture table1.svg

Forward and backward pass of one sequence, fp32, one thread; processor time, the median of several runs. The memory is
the most that was held at once: torch's profiler tells every allocation and release of its allocator on the CPU, and the
highest sum of them, above what the layer and its input take before, is what is shown. What a library below torch
allocates by itself is not in it.

The terms of Table 1 count what passes between positions. So attention is measured by itself, queries, keys and values
given, and as a whole layer with its four projections, O(n·d²) for any length.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import torch
from loglog import Curve, Panel, Point, exponent, picture
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmtkit.model.attention import SelfAttention, attend, attend_blockwise
from nmtkit.model.config import TransformerConfig

HEAD = 64  # width of a head, as in the paper: a wider layer has more heads
KERNEL = 3  # positions that a convolution sees
FITTED = 3  # the largest sizes of a sweep, which exponents are fitted to

Work = Callable[[], Tensor]


class Layer(NamedTuple):
    """A row of Table 1."""

    name: str
    complexity: str  # per layer, in the paper
    length_exponent: int  # of n in it
    width_exponent: int  # of d in it
    make: Callable[[int, int, int], tuple[Work, list[Tensor]]]  # of n, d, r: the forward pass, and what has gradients


def heads_of(length: int, width: int) -> list[Tensor]:
    """Queries, keys and values (1, H, n, 64)."""
    return [torch.randn(1, width // HEAD, length, HEAD, requires_grad=True) for _ in range(3)]


def full(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    q, k, v = inputs = heads_of(length, width)
    return lambda: attend(q, k, v, None), inputs


def restricted(length: int, width: int, window: int) -> tuple[Work, list[Tensor]]:
    q, k, v = inputs = heads_of(length, width)
    return lambda: attend_blockwise(q, k, v, None, window, causal=False, dropout_rate=0.0), inputs


def whole(window: bool) -> Callable[[int, int, int], tuple[Work, list[Tensor]]]:
    def make(length: int, width: int, r: int) -> tuple[Work, list[Tensor]]:
        config = TransformerConfig(d_model=width, heads=width // HEAD, attention_window=r if window else None)
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
    Layer("self-attention, whole layer", "O(n²·d + n·d²)", 2, 2, whole(window=False)),
    Layer("restricted, whole layer", "O(r·n·d + n·d²)", 1, 2, whole(window=True)),
]


class Cost(NamedTuple):
    """Of one forward and backward pass."""

    milliseconds: float
    mebibytes: float


def cost(layer: Layer, length: int, width: int, window: int, runs: int) -> Cost:
    """Of a layer of this size."""
    torch.manual_seed(1)
    forward, inputs = layer.make(length, width, window)

    def work() -> None:
        output = forward()
        output.backward(torch.ones_like(output))  # type: ignore[no-untyped-call]

    times = []
    for _ in range(runs + 1):  # the first is not counted
        for tensor in inputs:
            tensor.grad = None
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    for tensor in inputs:
        tensor.grad = None
    return Cost(statistics.median(times[1:]) * 1000, peak_bytes(work) / 2**20)


def peak_bytes(work: Callable[[], None]) -> int:
    """The most that torch's allocator has given out at once while `work` ran, less what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    recorded = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def doubling(first: int, last: int) -> list[int]:
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes


class Sweep(NamedTuple):
    """What each layer costs while one size grows."""

    variable: str
    sizes: list[int]
    costs: dict[str, list[Cost]]  # by the layer's name

    def points(self, layer: str, what: str) -> list[Point]:
        return list(zip(self.sizes, (getattr(one, what) for one in self.costs[layer]), strict=True))

    def exponent(self, layer: str, what: str) -> float:
        return exponent(self.points(layer, what), FITTED)

    def panel(self, what: str, title: str, unit: str, x_label: str) -> Panel:
        return Panel(title, x_label, unit, [Curve(name, self.points(name, what)) for name in self.costs])


def show_fits(lengths: Sweep, widths: Sweep) -> None:
    """The exponents beside those of the paper, as a table in Markdown."""
    click.echo("| layer | in the paper | time ~ n^ (paper) | time ~ d^ (paper) | memory ~ n^ | memory ~ d^ |")
    click.echo("|---|---|---|---|---|---|")
    for layer in LAYERS:
        over_n, over_d = (sweep.exponent(layer.name, "milliseconds") for sweep in (lengths, widths))
        memory = [f"{sweep.exponent(layer.name, 'mebibytes'):.2f}" for sweep in (lengths, widths)]
        times = f"{over_n:.2f} ({layer.length_exponent}) | {over_d:.2f} ({layer.width_exponent})"
        click.echo(f"| {layer.name} | {layer.complexity} | {times} | {' | '.join(memory)} |")


def show_costs(sweep: Sweep, what: str, unit: str) -> None:
    """The figures themselves."""
    click.echo(f"\n| {unit}, {sweep.variable} = | {' | '.join(map(str, sweep.sizes))} |")
    click.echo("|---" * (len(sweep.sizes) + 1) + "|")
    for name, costs in sweep.costs.items():
        click.echo(f"| {name} | {' | '.join(f'{getattr(one, what):.3g}' for one in costs)} |")


def show_windows(windows: Sequence[int], length: int, width: int, runs: int) -> None:
    """That restricted attention costs what its window does."""
    layer = LAYERS[1]
    costs = [cost(layer, length, width, window, runs) for window in windows]
    fit = exponent([(window, one.milliseconds) for window, one in zip(windows, costs, strict=True)], FITTED)
    click.echo(f"\n| {layer.name}, n = {length}, d = {width}, r = | {' | '.join(map(str, windows))} | r^ (paper) |")
    click.echo("|---" * (len(windows) + 2) + "|")
    click.echo(f"| ms | {' | '.join(f'{one.milliseconds:.3g}' for one in costs)} | {fit:.2f} (1) |")
    click.echo(f"| MiB | {' | '.join(f'{one.mebibytes:.3g}' for one in costs)} | |")


@click.command()
@click.option("--max-length", default=4096, show_default=True, help="Of the sweep over n, from 64 on.")
@click.option("--max-width", default=1024, show_default=True, help="Of the sweep over d, from 64 on.")
@click.option("--length", default=1024, show_default=True, help="n while d grows.")
@click.option("--width", default=256, show_default=True, help="d while n grows.")
@click.option("--window", default=32, show_default=True, help="r, positions to each side.")
@click.option("--runs", default=5, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--picture", "path", type=click.Path(path_type=Path), help="Where to draw it, as SVG.")
def main(
    max_length: int, max_width: int, length: int, width: int, window: int, runs: int, threads: int, path: Path | None
) -> None:
    """Measure, and print Table 1 with exponents."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    torch.set_num_threads(threads)
    sizes = doubling(64, max_length)
    lengths = Sweep("n", sizes, {one.name: [cost(one, n, width, window, runs) for n in sizes] for one in LAYERS})
    sizes = doubling(64, max_width)
    widths = Sweep("d", sizes, {one.name: [cost(one, length, d, window, runs) for d in sizes] for one in LAYERS})
    click.echo(f"Over n: d = {width}. Over d: n = {length}. r = {window}. Fitted to the {FITTED} largest sizes.\n")
    show_fits(lengths, widths)
    for sweep in (lengths, widths):
        show_costs(sweep, "milliseconds", "ms")
        show_costs(sweep, "mebibytes", "MiB")
    show_windows(doubling(8, max_length // 8), max_length, width, runs)
    if path is not None:
        over_n, over_d = f"sequence length n (d = {width})", f"width d (n = {length})"
        panels = [
            lengths.panel("milliseconds", "Time over length", "ms of processor time", over_n),
            widths.panel("milliseconds", "Time over width", "ms of processor time", over_d),
            lengths.panel("mebibytes", "Memory over length", "MiB", over_n),
            widths.panel("mebibytes", "Memory over width", "MiB", over_d),
        ]
        title = "What one layer costs in time and memory, forward and backward, over sequence length and width"
        path.write_text(picture(title, panels), encoding="utf-8")


if __name__ == "__main__":
    main()
