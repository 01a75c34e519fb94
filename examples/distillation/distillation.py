"""Compares teachers with their students: prints Markdown tables, and writes a self-contained HTML page.

    PYTHONPATH=.. python distillation.py work/multi30k/seed-1/measures.json work/multi30k/seed-2/measures.json …

Each argument is written by measure.py, in CORPUS/seed-SEED.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import click
import html_report
import seeds
from measure import SETTINGS, STUDENT, TEACHER, Setting
from seeds import Estimate, Spread

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError

TITLE = "A teacher and its student"
HEADER = (
    *("model", "search", "precision", "BLEU", "− teacher", "sentences per second", "× teacher"),
    *("parameters, 10⁶", "int8, MB"),
)
MOST_LOST, TIMES_FASTER = 0.5, 3.0  # the aim of a student
EXAMPLES = 20
NOTE = (
    "± is half of a 95 % interval over seeds, whose spread is pooled over the rows. Speed: sentences of the test set "
    "per second of processor time on one thread, tokenization included; median of three turns, mean over seeds. "
    "The plain model has the student's size and was trained on the references instead of the teacher's translations."
)


class Result(NamedTuple):
    """A setting with one seed."""

    bleu: float
    speed: float  # sentences per second


class Corpus(NamedTuple):
    """What measure.py wrote for a corpus, one for each seed."""

    name: str
    measures: Sequence[Mapping[str, Any]]

    @property
    def results(self) -> dict[Setting, list[Result]]:
        """The results of each setting, one for each seed."""
        found: dict[Setting, list[Result]] = {}
        for measured in self.measures:
            for one in measured["results"]:
                setting = Setting(one["model"], one["beam"], one["precision"], one["shortlist"])
                found.setdefault(setting, []).append(Result(one["bleu"], one["sentences_per_second"]))
        return found

    def spread(self) -> Spread:
        """The spread of BLEU between seeds."""
        return seeds.pooled([one.bleu for one in several] for several in self.results.values())

    def above_teacher(self, setting: Setting) -> Estimate:
        """How much higher the BLEU of a setting is than the teacher's."""
        results = self.results
        values, base = ([one.bleu for one in results[own]] for own in (setting, TEACHER))
        return seeds.difference(values, base, self.spread())

    def times_teacher(self, setting: Setting) -> float:
        """How many times as fast as the teacher a setting is."""
        results = self.results
        return mean(one.speed for one in results[setting]) / mean(one.speed for one in results[TEACHER])

    def row(self, setting: Setting) -> list[str]:
        several = self.results[setting]
        size = self.measures[0]["sizes"][setting.model]
        above = "" if setting == TEACHER else self.above_teacher(setting).shown(2, "+")
        return [
            *(setting.model, _search(setting), setting.precision),
            *(seeds.mean([one.bleu for one in several], self.spread()).shown(2), above),
            *(f"{mean(one.speed for one in several):.0f}", f"{self.times_teacher(setting):.1f}"),
            *(f"{size['parameters'] / 1e6:.2f}", f"{size['int8_megabytes']:.1f}"),
        ]

    def conclusion(self) -> str:
        """Whether the student reaches its aim."""
        above, times = self.above_teacher(STUDENT).mean, self.times_teacher(STUDENT)
        reached = above >= -MOST_LOST and times >= TIMES_FASTER
        return (
            f"{self.name}: the greedy student with a shortlist has {above:+.2f} BLEU and {times:.1f} times the speed "
            f"of its teacher; the aim, at least {-MOST_LOST:g} BLEU and {TIMES_FASTER:g} times the speed, "
            f"is {'reached' if reached else 'missed'}."
        )


def _search(setting: Setting) -> str:
    search = "greedy" if setting.beam == 1 else f"beam {setting.beam}"
    return f"{search}, shortlist" if setting.shortlist else search


def read(paths: Sequence[Path]) -> list[Corpus]:
    """Read the files by corpus, in their order. Raises UserError if one has something else."""
    names = dict.fromkeys(path.parts[-3] for path in paths)
    return [Corpus(name, [_measures(path) for path in paths if path.parts[-3] == name]) for name in names]


def _measures(path: Path) -> Mapping[str, Any]:
    try:
        measured: Mapping[str, Any] = json.loads(path.read_bytes())
        is_valid = set(Corpus("", [measured]).results) == set(SETTINGS)
        is_valid &= measured.keys() >= {"sizes", "translations", "source", "reference"}
    except (ValueError, TypeError, LookupError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{path} is not a result of measure.py: remove it, and call make again")
    return measured


def markdown(corpora: Sequence[Corpus]) -> str:
    """The tables as Markdown."""
    parts = []
    for corpus in corpora:
        lines = [HEADER, ["---"] * len(HEADER), *map(corpus.row, corpus.results)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {corpus.name}\n\n{table}\n\n{corpus.conclusion()}")
    return "\n\n".join([*parts, NOTE])


def page(corpora: Sequence[Corpus]) -> str:
    """The HTML page: tables, and translations of the first seed beside the references."""
    sections = {}
    for corpus in corpora:
        sections[corpus.name] = html_report.table(HEADER, map(corpus.row, corpus.results))
        sections[f"Translations: {corpus.name}"] = _translations(corpus.measures[0])
    summary = "\n".join([*(corpus.conclusion() for corpus in corpora), NOTE])
    return html_report.page(TITLE, summary, sections | {"Machine": html_report.machine()})


def _translations(measured: Mapping[str, Any]) -> str:
    columns = (measured["source"], measured["reference"], *measured["translations"])
    step = -(-len(measured["source"]) // EXAMPLES) or 1
    header = ("source", "reference", "teacher", f"student, {_search(STUDENT)}")
    return html_report.table(header, list(zip(*columns, strict=True))[::step], "texts")


@command("distillation.py")
@click.argument("measures", metavar="FILE...", nargs=-1, required=True, type=PathName())
@html_report.output_option
def main(measures: tuple[Path, ...], output: Path) -> None:
    """Compare models by each FILE that measure.py wrote."""
    corpora = read(measures)
    html_report.write(output, page(corpora))
    click.echo(markdown(corpora))


if __name__ == "__main__":
    main()
