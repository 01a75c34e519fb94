"""Plots training curves of one or several runs as SVG: loss, perplexity and BLEU over updates.

    python examples/curves.py checkpoints/en-de
    python examples/curves.py base=checkpoints/base big=checkpoints/big --output curves.svg

The first form names the run by its folder.
"""

import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from nmtkit.cli.command import command
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.text.reading import read_raw_lines
from nmtkit.wording import escaped

Points = list[tuple[int, float]]  # (update, value)

WIDTH, PANEL_HEIGHT, LEGEND_ROW = 5.0, 2.2, 0.25  # inches; narrow enough to be read on a phone
MAX_MARKERS = 60  # longer lines have no markers
matplotlib.rcdefaults()  # the user's own settings may need fonts or LaTeX, which are not there
COLORS = matplotlib.color_sequences["petroff10"]  # chosen for colour-blind readers
LOOKS = list(cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=COLORS))


@dataclass(frozen=True)
class Panel:
    """A plot: its title, and the keys of metrics.jsonl that it shows."""

    title: str
    validation: str
    training: str | None = None
    logarithmic: bool = False


PANELS = (
    Panel("Loss (thin: training)", "valid_loss", training="loss"),
    Panel("Validation perplexity", "valid_ppl", logarithmic=True),
    Panel("Validation BLEU", "valid_bleu"),
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
            raise UserError(f"{path}: no numbers of a training: give the metrics.jsonl that nmt-train writes")
        return cls(name or path.resolve().parent.name, {key: sorted(own.items()) for key, own in found.items()})


def plot(runs: Sequence[Run]) -> Figure:
    """All panels that have data, one below the other, with one legend above. Raises UserError if there are none."""
    panels = [panel for panel in PANELS if any(_curves(panel, run) for run in runs)]
    if not panels:
        raise UserError("no run has a loss, a perplexity or BLEU: give the metrics.jsonl of a training")
    height = PANEL_HEIGHT * len(panels) + LEGEND_ROW * (len(runs) + 1)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    for axes, panel in zip(figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel, runs)
    axes.set_xlabel("updates")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    lines = [axes.plot([], [], **_look(number))[0] for number in range(len(runs))]
    legend = figure.legend(lines, [escaped(run.name) for run in runs], loc="outside upper left", frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _draw(axes: Axes, panel: Panel, runs: Sequence[Run]) -> None:
    axes.set_title(panel.title, loc="left", fontweight="bold")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    for number, run in enumerate(runs):
        for key, points in _curves(panel, run):
            line = axes.plot(*zip(*points, strict=True), **_look(number), gid=f"{key} {number}")[0]
            if key == panel.training:
                line.set(linewidth=0.8, alpha=0.6)
            elif len(points) <= MAX_MARKERS:
                line.set(marker="o", markersize=3)


def _look(number: int) -> dict[str, Any]:
    """The color and line style of a run."""
    return LOOKS[number % len(LOOKS)]


def _curves(panel: Panel, run: Run) -> list[tuple[str, Points]]:
    """The keys and points of a run in a panel; training comes first, so validation is drawn on top of it."""
    found = [(key, run.metrics[key]) for key in (panel.training, panel.validation) if key in run.metrics]
    if not panel.logarithmic:
        return found
    positive = [(key, [(update, value) for update, value in points if value > 0]) for key, points in found]
    return [(key, points) for key, points in positive if points]


def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes for the same figure. Text stays text, in a font of the viewer."""
    output = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the viewer's font may have it
        figure.savefig(output, format="svg", metadata={"Date": None})
    return output.getvalue()


@command("curves.py")
@click.argument("runs", metavar="[NAME=]PATH...", nargs=-1, required=True)
@click.option("--output", metavar="FILE", default="curves.svg", show_default=True, type=click.Path(path_type=Path))
def main(runs: tuple[str, ...], output: Path) -> None:
    """Plot the training curves of runs. PATH is a save folder of nmt-train or its metrics.jsonl."""
    read = [Run.read(argument) for argument in runs]
    picture = to_svg(plot(read))
    with staged_file(output) as file:
        file.write(picture)
    click.echo(f"wrote {output}, the curves of {', '.join(run.name for run in read)}", err=True)


if __name__ == "__main__":
    main()
