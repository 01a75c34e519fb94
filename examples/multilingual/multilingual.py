"""Compares a multilingual model with one model for each direction, as Markdown, and writes a self-contained HTML page.

    PYTHONPATH=.. python multilingual.py work --directions "en-de de-en" --seeds "1 2"

The folder has what the Makefile writes: `all/seed-N` for the multilingual model, `DIRECTION/seed-N` for the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import click
import curves
import html_report
import scores
import seeds as statistics

from nmtkit.checkpoint import read_progress
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.storage.run_files import LAST
from nmtkit.text.reading import read_lines
from nmtkit.wording import counted

TITLE = "One model for several directions, beside one for each"
EXAMPLES = 5  # translations shown of each direction
LIMITS = (
    "All models have the same options, vocabulary and text. BLEU of different test sets and languages cannot be "
    "compared: compare within a line. A difference counts only if its interval excludes 0, which needs several seeds."
)
HEADER = ("direction", "one model", "a model of its own", "difference", "tokenization")


@dataclass(frozen=True)
class Training:
    """A finished training: its folder, and what its checkpoints record."""

    folder: Path
    progress: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Training":
        return cls(folder, read_progress(scores.training_file(folder, LAST)))

    def cost(self) -> tuple[str, ...]:
        """A row of the table of costs."""
        minutes = self.progress.get("processor_minutes", self.progress["minutes"])
        name = "/".join(self.folder.parts[-2:])
        return name, f"{self.progress['update']:,}", f"{minutes:.1f}", f"{self.progress['flops']:.2g}"


@dataclass(frozen=True)
class Direction:
    """The BLEU of the multilingual model and of a model for this direction alone, for each seed."""

    name: str
    together: Sequence[float]
    alone: Sequence[float]
    tokenization: str

    @classmethod
    def read(cls, folder: Path, name: str, seeds: Sequence[str]) -> "Direction":
        together = [scores.read_bleu(folder / "all" / f"seed-{seed}" / name) for seed in seeds]
        alone = [scores.read_bleu(folder / name / f"seed-{seed}") for seed in seeds]
        return cls(name, [bleu.value for bleu in together], [bleu.value for bleu in alone], together[0].tokenization)


def comparison(directions: Sequence[Direction]) -> list[tuple[str, ...]]:
    """A row for each direction: BLEU of both models and their difference, as means over seeds."""
    spread = statistics.pooled(values for each in directions for values in (each.together, each.alone))
    rows: list[tuple[str, ...]] = []
    for each in directions:
        gain = statistics.difference(each.together, each.alone, spread)
        interval = "" if gain.half_width is None else f" ± {gain.half_width:.2f}"
        values = (html_report.spread(each.together), html_report.spread(each.alone), f"{gain.mean:+.2f}{interval}")
        rows.append((each.name, *values, each.tokenization))
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The comparison as a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (HEADER, ["---"] * len(HEADER), *rows))


def page(folder: Path, directions: Sequence[Direction], seeds: Sequence[str]) -> str:
    """The HTML page: the comparison, the curves and costs of all trainings, and translations of the first seed."""
    names = ["all", *(each.name for each in directions)]
    trainings = [Training.read(folder / name / f"seed-{seed}") for name in names for seed in seeds]
    first = [curves.Run.read(f"{name}={folder / name / f'seed-{seeds[0]}' / 'checkpoints'}") for name in names]
    header = ("training", "updates", "processor minutes", "operations")
    note = "Differences: 95 % intervals, with a spread over seeds that all models share."
    validated = f"The curve of all is the validation on {escape(directions[0].name)}, its first dataset."
    sections = {
        "BLEU of the test sets": html_report.table(HEADER, comparison(directions)) + f"<p><small>{note}</small></p>",
        f"Training, seed {seeds[0]}": html_report.picture(curves.plot(first)) + f"<p><small>{validated}</small></p>",
        "Cost": html_report.table(header, [training.cost() for training in trainings]),
        f"Translations, seed {seeds[0]}": "".join(_translations(folder, each.name, seeds[0]) for each in directions),
        "Machine": html_report.machine(),
    }
    return html_report.page(TITLE, LIMITS, sections)


def _translations(folder: Path, direction: str, seed: str) -> str:
    """The first test sentences of a direction in both models' translations."""
    target = direction.partition("-")[2]
    paths = [folder / "all" / f"seed-{seed}" / direction, folder / direction / f"seed-{seed}"]
    files = [path / f"translation.{target}" for path in paths]
    columns = [list(read_lines(file)) for file in files]
    if len(columns[0]) != len(columns[1]):
        shorter = min((0, 1), key=lambda number: len(columns[number]))
        raise UserError(
            f"{files[shorter]} has {counted(len(columns[shorter]), 'line')}, {files[1 - shorter]} has "
            f"{len(columns[1 - shorter])}: remove the first, and call make again"
        )
    table = html_report.table(HEADER[1:3], list(zip(*columns, strict=True))[:EXAMPLES], "texts")
    return f"<h3>{escape(direction)}</h3>{table}"


@command("multilingual.py")
@click.argument("folder", type=PathName())
@click.option("--directions", required=True, metavar="NAMES", help="Directions, separated by spaces.")
@click.option("--seeds", required=True, metavar="SEEDS", help="Seeds of the trainings, separated by spaces.")
@html_report.output_option
def main(folder: Path, directions: str, seeds: str, output: Path) -> None:
    """Compare the finished trainings in FOLDER."""
    read = [Direction.read(folder, name, seeds.split()) for name in directions.split()]
    html_report.write(output, page(folder, read, seeds.split()))
    click.echo(markdown(comparison(read)))


if __name__ == "__main__":
    main()
