"""Writes a report on finished runs of a recipe as one self-contained HTML page, and prints their scores.

    python examples/report.py work/seed-1 work/seed-2 --source test.en.gz --reference test.de.gz --target-lang de \\
        --tokenized-bleu --output report.html

A run is a folder with what the recipes write: `checkpoints/`, the save folder of nmt-train; `averaged.pt`, and the
translation of the test set as `translation.LANG`. Its commands are read from `*.command`, there or in the folder above.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import click
import curves
import html_report
from matplotlib.figure import Figure
from scores import training_file

from nmtkit.checkpoint import read_progress
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Translation
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.scoring.bleu import Score, bleu, chrf, tokenized_bleu
from nmtkit.storage.run_files import LAST
from nmtkit.text.reading import read_lines
from nmtkit.text.tokenizer import join_subwords
from nmtkit.wording import counted, escaped

EXAMPLES, ATTENTIONS = 20, 2  # sentences shown
ATTENTION_TOKENS = range(6, 16)  # source tokens of a sentence whose attention is legible
RESAMPLES = 1000
STEPS = ("preprocess", "train", "average", "generate")


@dataclass(frozen=True)
class TestSet:
    """The lines of both sides, and the metrics by which translations are scored."""

    source: Sequence[str]
    reference: Sequence[str]
    language: str
    sacrebleu: bool
    tokenized_bleu: bool

    def scores(self, translation: Sequence[str]) -> list[Score]:
        """The scores of a translation, with 95 % confidence intervals by bootstrap resampling."""
        found = []
        if self.tokenized_bleu:
            found.append(tokenized_bleu(translation, self.reference, RESAMPLES))
        if self.sacrebleu:
            found += [
                bleu(translation, self.reference, self.language, RESAMPLES),
                chrf(translation, self.reference, RESAMPLES),
            ]
        return found


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the translation of the test set with its scores, and the progress of the training."""

    folder: Path
    translation: Sequence[str]
    scores: Sequence[Score]
    progress: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, test: TestSet) -> "Run":
        """Read a run. Raises UserError if a file is missing, or the translation has another number of lines."""
        path = folder / f"translation.{test.language}"
        translation = list(read_lines(path))
        if len(translation) != len(test.reference):
            raise UserError(
                f"{path} has {counted(len(translation), 'line')}, the reference has {len(test.reference)}: "
                "translate the test set again"
            )
        return cls(folder, translation, test.scores(translation), read_progress(training_file(folder, LAST)))

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return int(self.progress["options"]["batches"]["seed"])

    def commands(self) -> Iterator[str]:
        """The recorded commands, in the order of the steps."""
        for step in STEPS:
            for path in (self.folder / f"{step}.command", self.folder.parent / f"{step}.command"):
                if path.exists():
                    yield " ".join(path.read_text(encoding="utf-8").split())
                    break


def summary(runs: Sequence[Run]) -> str:
    """The scores of all runs, one metric a line, with mean and standard deviation over several seeds."""
    lines = []
    for scores in zip(*(run.scores for run in runs), strict=True):
        values = [score.value for score in scores]
        name = scores[0].signature.partition("|")[0]
        each = ", ".join(f"seed {run.seed}: {value:.2f}" for run, value in zip(runs, values, strict=True))
        lines.append(f"{name} {html_report.spread(values)}" + (f" ({each})" if len(runs) > 1 else ""))
    return "\n".join(lines)


def page(title: str, runs: Sequence[Run], test: TestSet) -> str:
    """The whole page. `runs` have different seeds; translations and attention are those of the first."""
    sections = {
        "Scores": _scores(runs),
        "Training": html_report.picture(curves.plot([_curve(run) for run in runs])),
        "Cost": _cost(runs),
        "Translations": _translations(runs[0], test),
        "Attention": _attention(runs[0], test.source),
        "Commands": _commands(runs),
        "Machine": html_report.machine(),
    }
    return html_report.page(title, summary(runs), sections)


def _scores(runs: Sequence[Run]) -> str:
    names = [score.signature.partition("|")[0] for score in runs[0].scores]
    header = ["seed", *names]
    rows = [[str(run.seed), *map(_with_interval, run.scores)] for run in runs]
    if len(runs) > 1:
        columns = zip(*(run.scores for run in runs), strict=True)
        rows.append(
            ["mean ± standard deviation", *(html_report.spread([one.value for one in column]) for column in columns)]
        )
    signatures = "<br>".join(escape(score.signature) for score in runs[0].scores)
    note = f"In brackets: mean and 95 % interval of {RESAMPLES} bootstrap resamples of the test set."
    return f"{html_report.table(header, rows)}<p><small>{note}<br>{signatures}</small></p>"


def _with_interval(score: Score) -> str:
    return f"{score.value:.2f}" + (f" ({score.estimate})" if score.estimate else "")  # a score of 0 has none


def _curve(run: Run) -> curves.Run:
    return curves.Run.read(f"seed {run.seed}={run.folder / 'checkpoints'}")


def _cost(runs: Sequence[Run]) -> str:
    header = ("seed", "updates", "complete epochs", "minutes", "processor minutes", "operations")
    rows = []
    for run in runs:
        progress = run.progress
        processor = progress.get("processor_minutes")  # checkpoints before it was recorded have none
        rows.append(
            (
                str(run.seed),
                f"{progress['update']:,}",
                f"{progress['epoch'] - 1}",
                f"{progress['minutes']:.1f}",
                "not recorded" if processor is None else f"{processor:.1f}",
                f"{progress['flops']:.2g}",
            )
        )
    note = "Of the training alone, with its validations. Operations: floating-point, by the model's own count."
    return f"{html_report.table(header, rows)}<p><small>{note}</small></p>"


def _translations(run: Run, test: TestSet) -> str:
    lines = range(0, len(test.source), -(-len(test.source) // EXAMPLES) or 1)
    rows = [
        (str(i + 1), *(_shown(text[i], test) for text in (test.source, test.reference, run.translation))) for i in lines
    ]
    return html_report.table(("line", "source", "reference", f"translation, seed {run.seed}"), rows, "texts")


def _shown(line: str, test: TestSet) -> str:
    return join_subwords(line) if test.tokenized_bleu else line


def _attention(run: Run, sources: Sequence[str]) -> str:
    """Heat maps of the attention to the source for a few sentences of legible length."""
    lines = [line for line in sources if len(line.split()) in ATTENTION_TOKENS][:ATTENTIONS]
    translator = Translator.from_checkpoint(run.folder / "averaged.pt", precision="fp32")
    found = translator.stream(lines, SearchConfig(alignment=True))
    note = f"Seed {run.seed}. Rows are tokens of the translation, columns of the source; darker: more attention."
    return f'<div class="figures">{"".join(map(_heat_map, found))}</div><p><small>{note}</small></p>'


def _heat_map(translation: Translation) -> str:
    best = translation.candidates[0]
    if best.attention is None or translation.source_tokens is None:
        return ""
    size = (1.2 + 0.22 * len(translation.source_tokens), 1.2 + 0.22 * len(best.tokens))  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.imshow(best.attention, cmap="Blues", vmin=0, vmax=1)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(translation.source_tokens)), map(escaped, translation.source_tokens), rotation=90)
    axes.set_yticks(range(len(best.tokens)), map(escaped, best.tokens))
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    return html_report.picture(figure)


def _commands(runs: Sequence[Run]) -> str:
    every = dict.fromkeys(line for run in runs for line in run.commands())  # shared steps once
    note = "<p>WORK is the folder of this page.</p>" if any(" WORK/" in line for line in every) else ""
    return note + "".join(f"<pre>{escape(line)}</pre>" for line in every)


@command("report.py")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PathName())
@click.option("--source", required=True, type=PathName(), metavar="FILE", help="Source side of the test set.")
@click.option("--reference", required=True, type=PathName(), metavar="FILE", help="Its other side.")
@click.option("--target-lang", required=True, metavar="LANG", help="Language of the translation.")
@click.option("--sacrebleu", is_flag=True, help="Score by sacreBLEU: BLEU and chrF.")
@click.option("--tokenized-bleu", is_flag=True, help="Score by BLEU on joined tokens, as fairseq does.")
@click.option("--title", default="Report", show_default=True, help="Title of the page.")
@html_report.output_option
def main(
    runs: tuple[Path, ...],
    source: Path,
    reference: Path,
    target_lang: str,
    sacrebleu: bool,
    tokenized_bleu: bool,
    title: str,
    output: Path,
) -> None:
    """Report on finished runs of a recipe, which have different seeds."""
    if not (sacrebleu or tokenized_bleu):
        raise UserError("no metric: give --sacrebleu or --tokenized-bleu")
    test = TestSet(list(read_lines(source)), list(read_lines(reference)), target_lang, sacrebleu, tokenized_bleu)
    if len(test.source) != len(test.reference):
        raise UserError(
            f"{source} has {counted(len(test.source), 'line')}, {reference} has {len(test.reference)}: "
            "give both sides of one test set"
        )
    read = [Run.read(folder, test) for folder in runs]
    if len({run.seed for run in read}) < len(read):
        raise UserError("two runs have the same seed: give runs with different seeds")
    html_report.write(output, page(title, read, test))
    click.echo(summary(read))


if __name__ == "__main__":
    main()
