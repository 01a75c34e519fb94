"""Plots the training curves of one or more runs: loss, perplexity and BLEU over updates.

    python examples/curves.py checkpoints/en-de
    python examples/curves.py base=checkpoints/base big=checkpoints/big --output curves.svg

A run is a save folder of nmt-train or its metrics.jsonl. Its default name is the name of its folder.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

Metrics = Mapping[str, Mapping[int, float]]  # the values of each key of metrics.jsonl by update
PANELS = {  # the keys of each panel, training before validation
    "Loss (thin: training)": ("loss", "valid_loss"),
    "Validation perplexity": ("valid_ppl",),
    "Validation BLEU": ("valid_bleu",),
}


def read(argument: str) -> tuple[str, Metrics]:
    """The name and the metrics of a run.

    Lines that are not JSON objects with an update are skipped, since a kill may truncate the last line; if an update
    occurs twice, the later line counts. Exits with a message if no line is usable.
    """
    name, _, path_name = ("", "", argument) if Path(argument).exists() else argument.rpartition("=")
    path = Path(path_name)
    path = path / "metrics.jsonl" if path.is_dir() else path
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
    return name or path.resolve().parent.name, {key: dict(sorted(own.items())) for key, own in found.items()}


def plot(runs: Mapping[str, Metrics]) -> Figure:
    """Draw a panel for each kind of value, stacked vertically. Exits with a message if there is none."""
    panels = {
        title: keys
        for title, keys in PANELS.items()
        if any(key in metrics for metrics in runs.values() for key in keys)
    }
    if not panels:
        sys.exit("no run has a loss, a perplexity or BLEU: give the metrics.jsonl of a training run")
    figure = Figure(figsize=(5, 2.2 * len(panels) + 0.25 * (len(runs) + 1)), layout="constrained")
    every = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (title, keys) in zip(every, panels.items(), strict=True):
        axes.set_title(title, loc="left")
        axes.grid(alpha=0.3)
        if title == "Validation perplexity":
            axes.set_yscale("log")
        for number, metrics in enumerate(runs.values()):
            for key in keys:
                thin = {"linewidth": 0.8, "alpha": 0.6} if key == "loss" else {"marker": ".", "linewidth": 1.5}
                points = metrics.get(key, {})
                style = "--" if number >= 10 else "-"  # there are ten colors
                axes.plot(list(points), list(points.values()), color=f"C{number}", linestyle=style, **thin)
    every[-1].set_xlabel("updates")
    lines = [every[-1].plot([], [], color=f"C{i}", linestyle="--" if i >= 10 else "-")[0] for i in range(len(runs))]
    for text in figure.legend(lines, list(runs), loc="outside upper left", frameon=False).get_texts():
        text.set_parse_math(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]PATH")
    parser.add_argument("--output", default="curves.svg", help="default: %(default)s")
    arguments = parser.parse_args()
    runs = dict(map(read, arguments.runs))
    matplotlib.rcParams["svg.fonttype"] = "none"  # keep text as text
    plot(runs).savefig(arguments.output)
    print(f"wrote {arguments.output}, the curves of {', '.join(runs)}", file=sys.stderr)


if __name__ == "__main__":
    main()
