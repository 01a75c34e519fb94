"""Log-log plots by matplotlib, and the exponent of a power law fitted to a curve."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

Point = tuple[float, float]

PANEL = (4.6, 3.3)  # inches
COLORS = matplotlib.color_sequences["petroff10"]  # chosen for colour-blind readers
MARKERS = "osD^v*"


@dataclass(frozen=True)
class Curve:
    """Points with positive coordinates, in order of increasing x."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """A pair of axes with curves. Curves of the same name look the same in all panels."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


def exponent(points: Sequence[Point], last: int | None = None) -> float:
    """The exponent b of y = a·x^b, fitted by least squares to the logarithms of the points, or of the `last` ones."""
    chosen = points[-last:] if last else points
    xs, ys = zip(*((math.log(x), math.log(y)) for x, y in chosen), strict=True)
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / math.fsum((x - x_mean) ** 2 for x in xs)


def plot(panels: Sequence[Panel], columns: int = 2) -> Figure:
    """One legend, and the panels below it in rows of `columns`."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
    lines: dict[str, Line2D] = {}
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
        _prepare(axes, panel)
        for curve in panel.curves:
            number = list(lines).index(curve.name) if curve.name in lines else len(lines)
            look = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
            lines[curve.name] = axes.plot(*zip(*curve.points, strict=True), **look)[0]
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def _prepare(axes: Axes, panel: Panel) -> None:
    """Logarithmic axes with ticks at powers of 2 and of 10."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
