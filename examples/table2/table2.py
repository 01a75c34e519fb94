"""Compares the models of the Table 2 recipe: prints Markdown tables, and writes a self-contained HTML page with curves.

    PYTHONPATH=..:../wmt14 python table2.py work/multi30k/transformer/seed-1 work/multi30k/recurrent/seed-1 …

Each argument is the folder of a finished run, CORPUS/MODEL/seed-SEED.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click
import curves
import html_report
import paper
from html_report import spread
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from runs import Run

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName

Group = tuple[str, Sequence[Run]]  # a model with its runs, which have different seeds

TITLE = "Table 2: a Transformer, a recurrent and a convolutional model of one size"
CORPORA = {"multi30k": "Multi30k English-German", "tanaka": "Tanaka English-Japanese"}
AXES = {"tflop": "floating-point operations, 10¹²", "minutes": "processor minutes"}
VALUES = {"bleu": "validation BLEU", "perplexity": "validation perplexity"}
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the cost of the cheapest run, at which the curves are read
LIMITS = (
    "What these numbers can say: which of three models of one size, trained on the same batches in the same precision, "
    "translates better at the same cost, on small corpora and within minutes of one processor core. A difference "
    "counts only if it is larger than the spread over seeds.\n"
    "What they cannot say: whether the paper's order holds on its corpus at its size. The paper compares models of "
    "different sizes by time × devices × rated speed; here operations are counted. BLEU of different corpora cannot be "
    "compared. The learning rates fall to 0 at the end of a run, so a reading before the end underestimates a run that "
    "is planned to end there. The learning rates were chosen from few candidates, in short runs except for the "
    "recurrent model; dropout was not tuned."
)


class Published(NamedTuple):
    """A row of the paper's Table 2; None for a blank cell. The cost is in floating-point operations."""

    name: str
    german: float
    german_cost: float | None
    french: float
    french_cost: float | None


_BASE = paper.TRAININGS["base"]
PUBLISHED = {
    "transformer": Published("Transformer (base)", _BASE.bleu["en-de"], _BASE.flops, _BASE.bleu["en-fr"], None),
    "recurrent": Published("GNMT + RL", 24.6, 2.3e19, 39.92, 1.4e20),
    "convolutional": Published("ConvS2S", 25.16, 9.6e18, 40.46, 1.5e20),
}


class Table(NamedTuple):
    """A table, with a note on it."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + (f"\n\n{self.note}" if self.note else "")

    def html(self) -> str:
        return html_report.table(self.header, self.rows) + (f"<p><small>{self.note}</small></p>" if self.note else "")


def grouped(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """The runs by corpus and model, in their order."""
    return {
        corpus: [
            (model, [run for run in runs if (run.corpus, run.model) == (corpus, model)])
            for model in dict.fromkeys(run.model for run in runs if run.corpus == corpus)
        ]
        for corpus in dict.fromkeys(run.corpus for run in runs)
    }


def beside_the_paper(corpora: dict[str, list[Group]]) -> Table:
    """Test BLEU and cost of each model, beside the system of its kind in the paper."""
    header = ["model", "paper", "En-De BLEU", "FLOPs", "En-Fr BLEU", "FLOPs"]
    header += [name for corpus in corpora for name in (f"{CORPORA[corpus]} BLEU", "FLOPs")]
    rows = []
    for model, published in PUBLISHED.items():
        row = [model, published.name, f"{published.german:g}", _cost(published.german_cost)]
        row += [f"{published.french:g}", _cost(published.french_cost)]
        for groups in corpora.values():
            runs = dict(groups).get(model, ())
            row += [_over(runs, lambda run: run.bleu), _cost(_mean_cost(runs))]
        rows.append(row)
    return Table(
        header, rows, "The paper: newstest2014, time × devices × rated speed. Here: test set, counted operations."
    )


def ends(groups: Sequence[Group]) -> Table:
    """Size, cost and quality of each model at the end of its runs."""
    header = ("model", "parameters, 10⁶", "seeds", "updates", "FLOPs", "processor minutes", "validation perplexity")
    rows = [
        (
            *(model, f"{runs[0].parameters / 1e6:.2f}", str(len(runs)), f"{runs[0].end.update:,}"),
            *(_cost(_mean_cost(runs)), _over(runs, lambda run: run.end.minutes, 1)),
            *(_over(runs, lambda run: run.end.perplexity), _over(runs, lambda run: run.end.bleu)),
            _over(runs, lambda run: run.bleu),
        )
        for model, runs in groups
    ]
    return Table((*header, "validation BLEU, greedy", "test BLEU, beam 4"), rows)


def at_equal_cost(groups: Sequence[Group], axis: str) -> Table:
    """Validation BLEU and perplexity of each model, read off the curves at shares of the cost of the cheapest run."""
    cheapest = min(getattr(run.end, axis) for _, runs in groups for run in runs)
    header = [AXES[axis], *(f"{model}, {value}" for value in ("BLEU", "perplexity") for model, _ in groups)]
    rows = []
    for share in SHARES:
        cost = share * cheapest
        readings = [[run.at(axis, cost, value) for run in runs] for value in VALUES for _, runs in groups]
        cells = [spread([one for one in own if one is not None]) if None not in own else "" for own in readings]
        rows.append([f"{cost:.3g}", *cells])
    return Table(header, rows, "Linear between validations; the last row is the end of the cheapest run.")


def _over(runs: Sequence[Run], value: Callable[[Run], float], digits: int = 2) -> str:
    """Mean and standard deviation of a value over runs; empty without runs."""
    return spread([value(run) for run in runs], digits) if runs else ""


def _mean_cost(runs: Sequence[Run]) -> float | None:
    """The mean cost of runs in operations; None without runs."""
    return 1e12 * fmean(run.end.tflop for run in runs) if runs else None


def _cost(operations: float | None) -> str:
    """A number of operations in the notation of the paper, 3.3e18."""
    return "" if operations is None else f"{operations:.2g}".replace("e+", "e")


def plot(groups: Sequence[Group]) -> Figure:
    """Each of `VALUES` over each of `AXES`: means over seeds as lines, with bands from the lowest to the highest."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for row, value in zip(figure.subplots(len(VALUES), len(AXES)), VALUES, strict=True):
        for axes, axis in zip(row, AXES, strict=True):
            _draw(axes, groups, axis, value)
    handles, labels = row[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=len(groups))
    return figure


def _draw(axes: Axes, groups: Sequence[Group], axis: str, value: str) -> None:
    """Draw a curve for each model, at the validations that all of its runs have in common."""
    for (model, runs), color in zip(groups, curves.COLORS, strict=False):
        validations = list(zip(*(run.validations for run in runs), strict=False))
        costs = [fmean([getattr(one, axis) for one in together]) for together in validations]
        values = [[getattr(one, value) for one in together] for together in validations]
        axes.plot(costs, [fmean(own) for own in values], color=color, marker="o", markersize=3, label=model)
        axes.fill_between(costs, [*map(min, values)], [*map(max, values)], color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel(AXES[axis])
    axes.set_title(VALUES[value].capitalize().replace("bleu", "BLEU"), loc="left", fontweight="bold")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if value == "perplexity":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def tables(groups: Sequence[Group]) -> dict[str, Table]:
    """The tables of a corpus by heading."""
    return {
        "End of training": ends(groups),
        "At equal operations": at_equal_cost(groups, "tflop"),
        "At equal processor time": at_equal_cost(groups, "minutes"),
    }


def markdown(corpora: dict[str, list[Group]]) -> str:
    """All tables as Markdown."""
    parts = ["## Beside the paper", beside_the_paper(corpora).markdown()]
    for corpus, groups in corpora.items():
        parts.append(f"## {CORPORA[corpus]}")
        parts += [f"### {heading}\n\n{table.markdown()}" for heading, table in tables(groups).items()]
    return "\n\n".join(parts)


def page(corpora: dict[str, list[Group]]) -> str:
    """The HTML page: tables, curves, and what they can show."""
    sections = {"Beside the paper": beside_the_paper(corpora).html()}
    for corpus, groups in corpora.items():
        parts = [html_report.picture(plot(groups)), "<p><small>Bands: lowest and highest seed.</small></p>"]
        parts += [f"<h3>{heading}</h3>\n{table.html()}" for heading, table in tables(groups).items()]
        sections[CORPORA[corpus]] = "\n".join(parts)
    return html_report.page(TITLE, LIMITS, sections | {"Machine": html_report.machine()})


@command("table2.py")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=PathName())
@html_report.output_option
def main(folders: tuple[Path, ...], output: Path) -> None:
    """Compare finished runs, each in CORPUS/MODEL/seed-SEED."""
    corpora = grouped([Run.read(folder) for folder in folders])
    html_report.write(output, page(corpora))
    click.echo(markdown(corpora))


if __name__ == "__main__":
    main()
