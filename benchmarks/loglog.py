"""Log-log plots as SVG, and the exponent of a power law fitted to a curve."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 460, 330  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 34, 46  # margins around its axes
LEGEND_ROW, LEGEND_COLUMNS = 22, 3
COLORS = ("#0072b2", "#d55e00", "#009e73", "#a0479a", "#8a6d00", "#444444")  # distinguishable for colour-blind readers
MARKERS = ("circle", "square", "diamond")


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


def picture(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """A complete SVG document: a legend, and the panels below it in rows of `columns`."""
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    legend_height = LEGEND_ROW * -(-len(names) // LEGEND_COLUMNS) + 8
    width, height = WIDTH * columns, legend_height + HEIGHT * -(-len(panels) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{escape(title)}">',
        "<style>text { fill: #222; } .tick { font-size: 11px; fill: #555; } .grid { stroke: #e4e4e4; }"
        " .axis { stroke: #888; fill: none; } .curve { fill: none; stroke-width: 2; }</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *_legend(names, width / LEGEND_COLUMNS),
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        parts += [f'<g transform="translate({column * WIDTH} {legend_height + row * HEIGHT})">']
        parts += [*_panel(panel, names), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _legend(names: list[str], column_width: float) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        row, column = divmod(number, LEGEND_COLUMNS)
        x, y = column * column_width + 20, LEGEND_ROW * (row + 0.7)
        parts.append(f'<path class="curve" stroke="{_color(number)}" d="M{x:.0f} {y:.1f} h28"/>')
        parts.append(_marker(number, x + 14, y))
        parts.append(_text(x + 36, y + 4.5, name))
    return parts


def _panel(panel: Panel, names: list[str]) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_axis = _Axis.over(2, [x for x, _ in points], LEFT, right)
    y_axis = _Axis.over(10, [y for _, y in points], bottom, TOP)
    parts = []
    for tick in x_axis.ticks:
        parts.append(f'<path class="grid" d="M{x_axis.position(tick):.1f} {TOP} V{bottom}"/>')
        parts.append(_text(x_axis.position(tick), bottom + 16, f"{tick:g}", 'class="tick" text-anchor="middle"'))
    for tick in y_axis.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y_axis.position(tick):.1f} H{right}"/>')
        parts.append(_text(LEFT - 6, y_axis.position(tick) + 4, f"{tick:,g}", 'class="tick" text-anchor="end"'))
    parts.append(f'<path class="axis" d="M{LEFT} {TOP} V{bottom} H{right}"/>')
    across, down = (LEFT + right) / 2, (TOP + bottom) / 2
    parts.append(_text(across, 20, panel.title, 'text-anchor="middle" font-weight="600"'))
    parts.append(_text(across, HEIGHT - 10, panel.x_label, 'text-anchor="middle"'))
    parts.append(_text(0, 0, panel.y_label, f'text-anchor="middle" transform="translate(15 {down:.0f}) rotate(-90)"'))
    for curve in panel.curves:
        number = names.index(curve.name)
        positions = [(x_axis.position(x), y_axis.position(y)) for x, y in curve.points]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in positions)
        parts.append(f'<path class="curve" stroke="{_color(number)}" d="M{path}"/>')
        parts += [_marker(number, x, y) for x, y in positions]
    return parts


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from the first tick, at coordinate `start`, to the last, at `end`."""

    ticks: Sequence[float]
    start: float
    end: float

    @classmethod
    def over(cls, base: int, values: Sequence[float], start: float, end: float) -> "_Axis":
        """An axis that covers the values, with ticks at powers of `base`, at least two."""
        first = math.floor(math.log(min(values), base) + 1e-9)
        last = max(first + 1, math.ceil(math.log(max(values), base) - 1e-9))
        return cls([float(base) ** power for power in range(first, last + 1)], start, end)

    def position(self, value: float) -> float:
        fraction = math.log(value / self.ticks[0]) / math.log(self.ticks[-1] / self.ticks[0])
        return self.start + (self.end - self.start) * fraction


def _text(x: float, y: float, content: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _marker(number: int, x: float, y: float) -> str:
    color, kind = _color(number), MARKERS[number % len(MARKERS)]
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4" fill="{color}"{turn}/>'
