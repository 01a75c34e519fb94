"""Scores one or more systems, with confidence intervals and a significance test.

sacreBLEU computes them by bootstrap resampling (Koehn 2004), with one exception: if a system's score equals the
baseline's, its p-value is 1, because sacreBLEU does not count resampled differences that equal the observed one.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from sacrebleu.significance import PairedTest, Result

from nmtkit.console.log import working
from nmtkit.console.terminal import Table
from nmtkit.errors import UserError
from nmtkit.scoring.bleu import Metric, Score, published_metrics, score, warn_of_subwords
from nmtkit.scoring.config import ScoreConfig, SignificanceConfig
from nmtkit.text.input_stream import STANDARD_STREAM, reads_terminal
from nmtkit.text.reading import decode_line, read_lines, read_raw_stdin
from nmtkit.wording import counted, escaped, quoted

_RESAMPLES = 1000  # sacreBLEU's default
Texts = Mapping[str, Sequence[str]]  #: file name -> lines


@dataclass(frozen=True)
class Comparison:
    """The scores of all systems in one metric."""

    note: str  #: which scores the metric can be compared with
    scores: Mapping[str, Score]  #: by name of the system

    @property
    def signature(self) -> str:
        """The name and signature of the metric, equal for all systems."""
        return next(iter(self.scores.values())).signature

    @property
    def metric(self) -> str:
        """The name of the metric with its tokenization, such as `BLEU 13a`."""
        name, *fields = self.signature.split("|")
        return " ".join([name, *(field.removeprefix("tok:") for field in fields if field.startswith("tok:"))])


def read_texts(translations: Sequence[Path], references: Sequence[Path]) -> tuple[Texts, Texts]:
    """Return the lines of each translation (stdin if none is given) and of each reference, by name. Raises UserError if
    files are empty, repeated, or differ in their number of lines."""
    for paths in (translations, references):
        if repeated := [path for path in paths if paths.count(path) > 1]:
            raise UserError(f"{repeated[0]} is given twice: give each file once")
    systems = dict(map(_read, translations or [STANDARD_STREAM]))
    expected = dict(map(_read, references))
    (name, lines), *others = [*expected.items(), *systems.items()]
    for other, found in others:
        if len(found) != len(lines):
            short = name if len(found) > len(lines) else other
            raise UserError(
                f"{other} has {counted(len(found), 'line')} and {name} has {len(lines)}: {short} has no line "
                f"{min(len(found), len(lines)) + 1}; the files must correspond line by line"
            )
    if not lines:
        raise UserError(f"{name} is empty: there is nothing to score")
    return systems, expected


def _read(path: Path) -> tuple[str, list[str]]:
    if path != STANDARD_STREAM:
        return str(path), list(read_lines(path))
    reads_terminal("end a line of the translation")
    lines = enumerate(read_raw_stdin(), 1)
    return "stdin", [decode_line(line, Path("stdin"), number) for number, line in lines]


def compare(
    systems: Texts, references: Texts, config: ScoreConfig, significance: SignificanceConfig
) -> list[Comparison]:
    """Score each system with all metrics that papers use for the language.

    With --paired-bs, the first system is the baseline of the others. Raises UserError for this test of a single system,
    and for a malformed SACREBLEU_SEED.
    """
    if significance.paired_bs and len(systems) < 2:
        raise UserError("--paired-bs needs two or more translations: the first is the baseline")
    seed = os.environ.get("SACREBLEU_SEED", "1")
    if seed.lower() != "none" and not (seed.isdecimal() and seed.strip("0")):  # sacreBLEU accepts 0 only in one place
        raise UserError(f"SACREBLEU_SEED is {quoted(seed)}: set it to a positive whole number, or to none")
    for name, lines in (*systems.items(), *references.items()):
        warn_of_subwords(name, lines)
    metrics = list(published_metrics(config.target_lang, config.tokenize))
    with working("scoring"):
        return [
            Comparison(note, dict(zip(systems, _scores(metric, systems, references, significance), strict=True)))
            for metric, note in metrics
        ]


def _scores(metric: Metric, systems: Texts, references: Texts, config: SignificanceConfig) -> list[Score]:
    expected = list(references.values())
    if not config.paired_bs:
        resamples = _RESAMPLES if config.confidence else 1
        return [score(metric, lines, expected, resamples) for lines in systems.values()]
    signatures, results = PairedTest(list(systems.items()), {"": metric}, expected, "bs", _RESAMPLES)()
    ((name, signature),) = signatures.items()
    found = [result for result in results[name] if isinstance(result, Result)]
    for result in found[1:]:
        if result.score == found[0].score:
            result.p_value = 1.0
    return [Score(result.score, f"{name}|{signature}", "", result.mean, result.ci, result.p_value) for result in found]


def as_table(comparisons: Iterable[Comparison]) -> Table:
    """Format a table for a terminal, with a row for each metric and system, and without empty columns."""
    rows = [
        (
            "" if number else comparison.metric,
            name if len(comparison.scores) > 1 else "",
            f"{one.value:6.2f}",
            one.estimate,
            _p_value(one),
        )
        for comparison in comparisons
        for number, (name, one) in enumerate(comparison.scores.items())
    ]
    header = ("metric", "system", "score", "mean, 95 % interval", "p-value")
    is_shown = [any(column) for column in zip(*rows, strict=True)]
    columns, *shown = [list(compress(row, is_shown)) for row in (header, *rows)]
    return Table("scores", shown, columns)


def as_lines(comparisons: Iterable[Comparison], rows: bool = True) -> list[str]:
    """Return the lines of a report: for each metric its signature or only score, a note, and `rows` of systems."""
    lines = []
    for comparison in comparisons:
        one, *others = comparison.scores.values()
        lines += [comparison.signature if others else one.text, f"    {comparison.note}"]
        if rows and others:
            width = max(len(escaped(name)) for name in comparison.scores)
            lines += [f"    {escaped(name):{width}}  {_row(each)}" for name, each in comparison.scores.items()]
    return lines


def _row(one: Score) -> str:
    estimate = f"  (μ = {one.estimate})" if one.estimate else ""
    return f"{one.value:6.2f}{estimate}{f'  p = {_p_value(one)}' if _p_value(one) else ''}"


def _p_value(one: Score) -> str:
    return "" if one.p_value is None else f"{one.p_value:.4f}"
