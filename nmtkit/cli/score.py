"""nmt-score: scores translations."""

import sys
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName, options, refuse_idle
from nmtkit.console.log import LogConfig, configure
from nmtkit.console.terminal import is_styled, styled_table, width
from nmtkit.scoring.config import ScoreConfig, SignificanceConfig
from nmtkit.text.input_stream import STANDARD_STREAM


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options without effect."""
    if values["paired_bs"]:
        refuse_idle(values, ["confidence"], "with --paired-bs, which always prints the intervals")


@command("nmt-score")
@click.argument("translation", metavar="[TRANSLATION]...", nargs=-1, type=PathName())
@options(refuse_idle_options, score=ScoreConfig, significance=SignificanceConfig, log=LogConfig)
def main(translation: tuple[Path, ...], score: ScoreConfig, significance: SignificanceConfig, log: LogConfig) -> None:
    """Score each TRANSLATION, or stdin, with the metrics that are common in papers.

    \b
    nmt-score newstest2014.output.de --reference newstest2014.de --target-lang de
    nmt-generate --checkpoint averaged.pt < test.en | nmt-score --reference test.de --target-lang de
    nmt-score baseline.de output.de --reference test.de --target-lang de --paired-bs

    Each score has its signature and a note on which published scores it is comparable with. Files are raw text, neither
    tokenized nor lowercased, plain or .gz, .xz, .bz2. SACREBLEU_SEED sets the seed of resampling (default: 12345).
    """
    configure(log)

    from nmtkit.scoring.comparison import as_lines, as_table, compare, read_texts
    from nmtkit.storage.outputs import check_stdout, writing_stdout

    check_stdout((*translation, *score.reference), reads_stdin=not translation or STANDARD_STREAM in translation)
    comparisons = compare(*read_texts(translation, score.reference), score, significance)
    with writing_stdout():
        if is_styled(sys.stdout):
            click.echo(styled_table(as_table(comparisons), width(sys.stdout)))
        for line in as_lines(comparisons, rows=not is_styled(sys.stdout)):
            click.echo(line)
