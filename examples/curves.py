"""Plots training curves of one or several runs as SVG: loss, perplexity and BLEU over updates.

    python examples/curves.py checkpoints/en-de
    python examples/curves.py base=checkpoints/base big=checkpoints/big --output curves.svg

The first form names the run by its folder.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import click

from nmtkit.atomic_io import staged_file
from nmtkit.cli.command import command
from nmtkit.errors import UserError
from nmtkit.text import read_raw_lines

Points = list[tuple[int, float]]  # (update, value)

WIDTH, HEIGHT = 300, 210  # plot area of a panel
LEFT, TOP, RIGHT, BELOW = 52, 44, 20, 46  # margins around it
COLORS = ("#0b63c5", "#c2410c", "#0f7f4f", "#9333a8", "#a16207", "#0e7490")
COLORS_IN_DARK = ("#8ab4ff", "#ff9e64", "#62dc98", "#d7a3f0", "#e6c35c", "#5fd3e6")
LEGEND_ROW = 22
MAX_DOTS = 60  # longer lines have no dots


@dataclass(frozen=True)
class Panel:
    """A plot: its title, and the keys of metrics.jsonl that it shows."""

    title: str
    validation: str
    training: str | None = None
    logarithmic: bool = False


PANELS = (
    Panel("Loss (thin: of training)", "valid_loss", training="loss"),
    Panel("Perplexity in validation", "valid_ppl", logarithmic=True),
    Panel("BLEU in validation", "valid_bleu"),
)


@dataclass(frozen=True)
class Run:
    """A training run: its name in the legend, and the values of its metrics.jsonl by key."""

    name: str
    metrics: dict[str, Points]

    @classmethod
    def read(cls, argument: str) -> "Run":
        """Read `NAME=PATH` or `PATH`, where the path is a metrics.jsonl or its folder.

        Lines that are not JSON objects with an update are skipped, since a kill may truncate the last line. If an
        update occurs twice, the later line counts. Raises UserError if no line is usable.
        """
        name, _, path_name = ("", "", argument) if Path(argument).exists() else argument.rpartition("=")
        path = Path(path_name)
        if path.is_dir():
            path /= "metrics.jsonl"
        found: dict[str, dict[int, float]] = {}
        for line in read_raw_lines(path):
            try:
                row = json.loads(line)
                update = int(row.pop("update"))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                continue
            for key, value in row.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    found.setdefault(key, {})[update] = value
        if not found:
            raise UserError(f"{path}: no line of it has the numbers of an update, as nmt-train writes them")
        return cls(name or path.resolve().parent.name, {key: sorted(own.items()) for key, own in found.items()})


class Axis:
    """Maps values to positions from 0 to `length`. The axis starts and ends at a tick, which is a round number."""

    def __init__(self, values: Iterable[float], length: float, logarithmic: bool = False) -> None:
        self.length, self._scale = length, math.log10 if logarithmic else float
        values = list(values)
        low, high = min(values), max(values)
        round_numbers = _logarithmic_ticks(low, high) if logarithmic else _linear_ticks(low, high)
        first = max((number for number in round_numbers if number <= low), default=low)
        last = min((number for number in round_numbers if number >= high and number > first), default=high)
        self.ticks = [number for number in round_numbers if first <= number <= last]
        self._low, self._high = self._scale(first), self._scale(last)

    def position(self, value: float) -> float:
        return (self._scale(value) - self._low) / (self._high - self._low) * self.length


def _linear_ticks(low: float, high: float) -> list[float]:
    """About five multiples of a round step, from below `low` to above `high`."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
    first = math.floor(low / step)
    return [number * step for number in range(first, max(math.ceil(high / step), first + 1) + 1)]


def _logarithmic_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from below `low` to above `high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    return [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]


def draw(runs: Sequence[Run]) -> str:
    """An SVG document with all panels that have data. Raises UserError if there are none."""
    panels = [panel for panel in PANELS if any(_curves(panel, run) for run in runs)]
    if not panels:
        raise UserError("there is neither a loss, nor a perplexity, nor BLEU in what is given")
    step = LEFT + WIDTH + RIGHT
    below = TOP + HEIGHT + BELOW
    width, height = step * len(panels), below + 14 + LEGEND_ROW * -(-len(runs) // len(panels))
    content = [
        f'<g transform="translate({step * number + LEFT} {TOP})">\n{_panel(panel, runs)}\n</g>'
        for number, panel in enumerate(panels)
    ]
    for number, run in enumerate(runs):
        row, column = divmod(number, len(panels))
        x, y = step * column + LEFT, below + LEGEND_ROW * row + 10
        content.append(f'<path class="{_color(number)}"{_dashes(number)} d="M{x} {y}h24"/>')
        content.append(f'<text x="{x + 32}" y="{y + 4}">{_escape(run.name)}</text>')
    names = _escape(", ".join(run.name for run in runs))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"\n'
        f' role="img" aria-label="Training curves: {names}" font-family="system-ui, sans-serif" font-size="12">\n'
        f"<style>\n{_style()}\n</style>\n"
        f'<rect class="ground" width="{width}" height="{height}" rx="10"/>\n' + "\n".join(content) + "\n</svg>\n"
    )


def _panel(panel: Panel, runs: Sequence[Run]) -> str:
    lines = [(number, key, points) for number, run in enumerate(runs) for key, points in _curves(panel, run)]
    across = Axis([0, *(update for _, _, points in lines for update, _ in points)], WIDTH)
    up = Axis([value for _, _, points in lines for _, value in points], HEIGHT, panel.logarithmic)
    drawn = [f'<text class="title" y="-16">{panel.title}</text>']
    for tick in up.ticks:
        y = HEIGHT - up.position(tick)
        drawn.append(f'<path class="grid" d="M0 {y:.1f}h{WIDTH}"/>')
        drawn.append(f'<text class="left" x="-8" y="{y + 4:.1f}">{tick:,g}</text>')
    for tick in across.ticks:
        x = across.position(tick)
        drawn.append(f'<path class="grid" d="M{x:.1f} {HEIGHT}v5"/>')
        drawn.append(f'<text class="middle" x="{x:.1f}" y="{HEIGHT + 19}">{tick:,.0f}</text>')
    drawn.append(f'<text class="middle" x="{WIDTH / 2}" y="{HEIGHT + 37}">updates</text>')
    for number, key, points in lines:
        positions = [(across.position(update), HEIGHT - up.position(value)) for update, value in points]
        thin = " thin" if key == panel.training else ""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        drawn.append(f'<polyline class="{_color(number)}{thin}"{_dashes(number)} data-key="{key}" points="{joined}"/>')
        if not thin and len(positions) <= MAX_DOTS:
            drawn += [f'<circle class="{_color(number)}" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in positions]
    return "\n".join(drawn)


def _curves(panel: Panel, run: Run) -> list[tuple[str, Points]]:
    """The keys and points of a run in a panel; training comes first, so validation is drawn on top of it."""
    found = [(key, run.metrics[key]) for key in (panel.training, panel.validation) if key in run.metrics]
    if not panel.logarithmic:
        return found
    positive = [(key, [(update, value) for update, value in points if value > 0]) for key, points in found]
    return [(key, points) for key, points in positive if points]


def _style() -> str:
    return f"""\
text {{ fill: #5c6675; }} .title {{ font-size: 14px; font-weight: 600; fill: #1b1f27; }}
.left {{ text-anchor: end; }} .middle {{ text-anchor: middle; }} .ground {{ fill: #fff; }} .grid {{ stroke: #d5dae2; }}
path, polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }} .grid {{ stroke-width: 1; }}
.thin {{ stroke-width: 1; stroke-opacity: .6; }}
{_colors(COLORS)}
@media (prefers-color-scheme: dark) {{
text {{ fill: #9aa5b5; }} .title {{ fill: #e7eaf0; }} .ground {{ fill: #1d2229; }} .grid {{ stroke: #343c48; }}
{_colors(COLORS_IN_DARK)}
}}"""


def _colors(colors: Sequence[str]) -> str:
    rules = (f".run{n} {{ stroke: {color}; }} circle.run{n} {{ fill: {color}; }}" for n, color in enumerate(colors))
    return "\n".join(rules)


def _color(number: int) -> str:
    return f"run{number % len(COLORS)}"


def _dashes(number: int) -> str:
    """The SVG attribute for dashes, which distinguish runs of the same color."""
    turn = number // len(COLORS)
    return f' stroke-dasharray="8 3{" 2 3" * (turn - 1)}"' if turn else ""


def _escape(name: str) -> str:
    """Escape a text for XML, and replace the characters that XML forbids."""
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", name), {'"': "&quot;"})


@command("curves.py")
@click.argument("runs", metavar="[NAME=]PATH...", nargs=-1, required=True)
@click.option("--output", metavar="FILE", default="curves.svg", show_default=True, type=click.Path(path_type=Path))
def main(runs: tuple[str, ...], output: Path) -> None:
    """Plot the training curves of runs. PATH is a save folder of nmt-train or its metrics.jsonl."""
    read = [Run.read(argument) for argument in runs]
    picture = draw(read)
    with staged_file(output) as file:
        file.write(picture.encode())
    click.echo(f"wrote {output}, the curves of {', '.join(run.name for run in read)}", err=True)


if __name__ == "__main__":
    main()
