"""Compares models trained with and without back-translations: prints Markdown tables, and writes an HTML page.

    PYTHONPATH=.. python backtranslation.py work/multi30k/seed-1/genuine work/multi30k/seed-1/tagged …

Each argument is the folder of a finished run, CORPUS/seed-SEED/MODEL.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import html_report
import scores
import seeds

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName

TITLE = "Back-translation"
BASE = "genuine"
MODELS = {
    BASE: "genuine pairs alone",
    "tagged": "genuine pairs, and tagged back-translations of the monolingual text",
    "all": "genuine pairs of both texts",
}
HEADER = ("trained on", "seeds", "BLEU", f"− {MODELS[BASE]}")
NOTE = (
    "± is half of a 95 % interval over seeds, whose spread is pooled over the rows. The monolingual text is the target "
    "side of the pairs that only the last row uses: the difference of the last row is the most that it could give."
)

Results = dict[str, list[float]]  # BLEU of each model, one for each seed


def read(folders: Sequence[Path]) -> dict[str, Results]:
    """The results by corpus. Raises UserError if a run is unfinished."""
    found: dict[str, Results] = {}
    for folder in folders:
        corpus, _, model = folder.parts[-3:]
        found.setdefault(corpus, {}).setdefault(model, []).append(scores.read_bleu(folder).value)
    return found


def rows(results: Results) -> list[list[str]]:
    """The rows of a corpus, in the order of `MODELS`."""
    spread = seeds.pooled(results.values())
    base = results.get(BASE)
    return [
        [
            *(trained_on, str(len(results[model])), seeds.mean(results[model], spread).shown(2)),
            seeds.difference(results[model], base, spread).shown(2, "+") if base and model != BASE else "",
        ]
        for model, trained_on in MODELS.items()
        if model in results
    ]


def markdown(corpora: dict[str, Results]) -> str:
    """The tables as Markdown."""
    parts = []
    for corpus, results in corpora.items():
        lines = [HEADER, ["---"] * len(HEADER), *rows(results)]
        parts.append(f"## {corpus}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, NOTE])


def page(corpora: dict[str, Results]) -> str:
    """The HTML page."""
    sections = {corpus: html_report.table(HEADER, rows(results)) for corpus, results in corpora.items()}
    return html_report.page(TITLE, NOTE, sections | {"Machine": html_report.machine()})


@command("backtranslation.py")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=PathName())
@html_report.output_option
def main(folders: tuple[Path, ...], output: Path) -> None:
    """Compare finished runs, each in CORPUS/seed-SEED/MODEL."""
    corpora = read(folders)
    html_report.write(output, page(corpora))
    click.echo(markdown(corpora))


if __name__ == "__main__":
    main()
