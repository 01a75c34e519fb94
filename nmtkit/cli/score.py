"""nmt-score: the scores of a translation, side by side."""

from pathlib import Path

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import ConfigOption, PathName, options
from nmtkit.decoding.input_stream import reads_terminal
from nmtkit.errors import UserError
from nmtkit.log import LogConfig, configure
from nmtkit.text import decode_line, read_lines, read_raw_stdin
from nmtkit.wording import counted


@command("nmt-score")
@click.argument("translation", required=False, type=PathName())
@click.option(
    "--reference",
    cls=ConfigOption,
    heading="Scores",
    required=True,
    type=PathName(),
    metavar="FILE",
    help="The reference, a line for each line of the translation.",
)
@click.option(
    "--target-lang",
    "-t",
    cls=ConfigOption,
    heading="Scores",
    required=True,
    metavar="LANG",
    help="Language of the translation, such as de, for its tokenization. Moses's tokenization supports de, en and fr.",
)
@options(log=LogConfig)
def main(translation: Path | None, reference: Path, target_lang: str, log: LogConfig) -> None:
    """Score TRANSLATION, or stdin, by every metric that is common in papers.

    \b
    nmt-score newstest2014.output.de --reference newstest2014.de --target-lang de
    nmt-generate --checkpoint averaged.pt < test.en | nmt-score --reference test.de --target-lang de

    Each score is printed with its signature and with the scores that it may be compared with. Both files are plain
    text, not tokenized and not lower-cased; they may be compressed: .gz, .xz, .bz2.
    """
    configure(log)
    if not target_lang:
        raise UserError("--target-lang is missing")
    hypotheses, references = _lines(translation), list(read_lines(reference))
    if len(hypotheses) != len(references):
        raise UserError(
            f"{translation or 'stdin'} has {counted(len(hypotheses), 'line')} and {reference} has {len(references)}: "
            "give a reference for each line"
        )
    if not references:
        raise UserError(f"{reference} is empty: there is nothing to score")

    from nmtkit.decoding.scoring import every_score, warn_of_subwords

    warn_of_subwords(hypotheses, references)
    for score, use in every_score(hypotheses, references, target_lang):
        click.echo(f"{score.text}\n    {use}")


def _lines(path: Path | None) -> list[str]:
    if path is None or path == Path("-"):
        reads_terminal()
        return [decode_line(line, Path("stdin"), number) for number, line in enumerate(read_raw_stdin(), 1)]
    return list(read_lines(path))
