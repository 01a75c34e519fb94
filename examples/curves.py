"""Plots the training curves of one or more models: loss, perplexity and BLEU over updates, operations or minutes.

    python examples/curves.py checkpoints/en-de
    python examples/curves.py base=checkpoints/base big=checkpoints/big --output curves.svg
    python examples/curves.py "base=seed-1/base seed-2/base" "big=seed-1/big seed-2/big" --over tflop

A run is a save folder of nmt-train or its metrics.jsonl. Its default name is the name of its folder. Several runs of
one model are drawn as their mean, with a band from minimum to maximum.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Metrics = Mapping[str, Mapping[int, float]]  # the values of each key of metrics.jsonl by update
AXES = {"update": "updates", "tflop": "operations, 10¹²", "processor_minutes": "processor minutes"}
PANELS = {  # the keys of each panel, training before validation
    "Loss (thin: training)": ("loss", "valid_loss"),
    "Validation perplexity": ("valid_ppl",),
    "Validation BLEU": ("valid_bleu",),
}


def read(argument: str) -> tuple[str, list[Metrics]]:
    """The name of a model and the metrics of its runs. Exits with a message if a run has no usable metrics."""
    name, _, names = ("", "", argument) if Path(argument).exists() else argument.rpartition("=")
    paths = [Path(path) for path in ([names] if Path(names).exists() else names.split())]
    files = [path / "metrics.jsonl" if path.is_dir() else path for path in paths]
    return name or files[0].resolve().parent.name, [read_metrics(path) for path in files]


def read_metrics(path: Path) -> Metrics:
    """The metrics of a run.

    Lines that are not JSON objects with an update are skipped, since a kill may truncate the last line; if an update
    occurs twice, the later line counts. Exits with a message if no line is usable.
    """
    found: dict[str, dict[int, float]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            update = int(row.pop("update"))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        for key, value in row.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(key, {})[update] = value
    if not found:
        sys.exit(f"{path}: no metrics of a training run: give the metrics.jsonl that nmt-train writes")
    return {key: dict(sorted(own.items())) for key, own in found.items()}


def cost(run: Metrics, axis: str, updates: Sequence[int]) -> NDArray[np.float64]:
    """The operations or minutes of a run at some updates, linear between its records, or the updates themselves.

    Exits with a message if the run has no such records.
    """
    if axis == "update":
        return np.array(updates, float)
    if not (records := run.get(axis)):
        sys.exit(f"a run has no {AXES[axis]}: draw its curves over updates")
    return np.interp(updates, [0, *records], [0.0, *records.values()])


def points(runs: Sequence[Metrics], key: str, axis: str) -> NDArray[np.float64]:
    """A row for each update at which all runs have the value: its cost, and mean, minimum and maximum of the value."""
    updates = [update for update in runs[0].get(key, {}) if all(update in run.get(key, {}) for run in runs)]
    values = np.array([[run[key][update] for run in runs] for update in updates]).reshape(len(updates), len(runs))
    places = np.mean([cost(run, axis, updates) for run in runs], axis=0)
    return np.column_stack([places, values.mean(1), values.min(1), values.max(1)])


def plot(models: Mapping[str, Sequence[Metrics]], axis: str = "update") -> Figure:
    """Draw a panel for each kind of value, stacked vertically. Exits with a message if there is none."""
    curves = {
        title: [(number, key, points(runs, key, axis)) for number, runs in enumerate(models.values()) for key in keys]
        for title, keys in PANELS.items()
    }
    panels = {title: several for title, several in curves.items() if any(len(rows) for _, _, rows in several)}
    if not panels:
        sys.exit("no run has a loss, a perplexity or BLEU: give the metrics.jsonl of a training run")
    figure = Figure(figsize=(5, 2.2 * len(panels) + 0.25 * (len(models) + 1)), layout="constrained")
    every = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    styles = [{"color": f"C{i}", "linestyle": "--" if i >= 10 else "-"} for i in range(len(models))]  # ten colors
    for axes, (title, several) in zip(every, panels.items(), strict=True):
        axes.set_title(title, loc="left")
        axes.grid(alpha=0.3)
        if title == "Validation perplexity":
            axes.set_yscale("log")
        for number, key, rows in several:
            thin = {"linewidth": 0.8, "alpha": 0.6} if key == "loss" else {"marker": ".", "linewidth": 1.5}
            axes.plot(rows[:, 0], rows[:, 1], **styles[number], **thin)
            axes.fill_between(*rows[:, [0, 2, 3]].T, color=f"C{number}", alpha=0.2, linewidth=0)
    every[-1].set_xlabel(AXES[axis])
    lines = [every[-1].plot([], [], **style)[0] for style in styles]
    for text in figure.legend(lines, list(models), loc="outside upper left", frameon=False).get_texts():
        text.set_parse_math(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]PATH")
    parser.add_argument("--over", choices=AXES, default="update", help="horizontal axis; default: %(default)s")
    parser.add_argument("--output", default="curves.svg", help="default: %(default)s")
    arguments = parser.parse_args()
    models = dict(map(read, arguments.runs))
    matplotlib.rcParams["svg.fonttype"] = "none"  # keep text as text
    plot(models, arguments.over).savefig(arguments.output)
    print(f"wrote {arguments.output}, the curves of {', '.join(models)}", file=sys.stderr)


if __name__ == "__main__":
    main()
