"""Scores of one or more systems, with confidence intervals and significance tests.

Both are sacreBLEU's own, so they equal those of its command: bootstrap resampling (Koehn 2004) and approximate
randomization (Riezler and Maxwell 2005). Only the p-value of a system whose score equals the baseline's is always 1
here: sacreBLEU does not count a resampled difference that equals the observed one, so the same lines get a low p-value.
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

Texts = Mapping[str, Sequence[str]]  #: the lines of each file, by its name


@dataclass(frozen=True)
class Comparison:
    """The scores of all systems by one metric."""

    note: str  #: on the scores that the metric is comparable with
    scores: Mapping[str, Score]  #: by the name of the system

    @property
    def signature(self) -> str:
        """The name and signature of the metric, which are the same for all systems."""
        return next(iter(self.scores.values())).signature

    @property
    def headline(self) -> str:
        """The line of the score with its signature; of several systems, the signature alone."""
        return next(iter(self.scores.values())).text if len(self.scores) == 1 else self.signature

    @property
    def metric(self) -> str:
        """The name of the metric with its tokenization: `BLEU 13a`."""
        name, *fields = self.signature.split("|")
        return " ".join([name, *(field.removeprefix("tok:") for field in fields if field.startswith("tok:"))])


def read_texts(translations: Sequence[Path], references: Sequence[Path]) -> tuple[Texts, Texts]:
    """The lines of the translations, or of stdin without one, and of the references.

    Raises UserError if a file is given twice, if two files differ in their number of lines, or if they have none.
    """
    for paths in (translations, references):
        for path in paths:
            if paths.count(path) > 1:
                raise UserError(f"{path} is given twice: give each file once")
    if STANDARD_STREAM in translations and Path("stdin") in translations:
        raise UserError(f"stdin is also the name of a file: give {Path('stdin').absolute()}")
    systems = dict(_read(path) for path in translations or [STANDARD_STREAM])
    expected = {str(path): list(read_lines(path)) for path in references}
    (name, lines), *others = [*expected.items(), *systems.items()]
    for other, found in others:
        _check_lengths(other, found, name, lines)
    if not lines:
        raise UserError(f"{name} is empty: there is nothing to score")
    return systems, expected


def _read(path: Path) -> tuple[str, list[str]]:
    if path != STANDARD_STREAM:
        return str(path), list(read_lines(path))
    reads_terminal("end a line of the translation")
    lines = enumerate(read_raw_stdin(), 1)
    return "stdin", [decode_line(line, Path("stdin"), number) for number, line in lines]


def _check_lengths(name: str, lines: Sequence[str], other: str, expected: Sequence[str]) -> None:
    """Raise UserError that names the first line without a counterpart."""
    if len(lines) == len(expected):
        return
    short, line = (name, len(lines)) if len(lines) < len(expected) else (other, len(expected))
    raise UserError(
        f"{name} has {counted(len(lines), 'line')} and {other} has {len(expected)}: {short} has no line {line + 1}; "
        "the files must correspond line by line"
    )


def compare(
    systems: Texts, references: Texts, config: ScoreConfig, significance: SignificanceConfig
) -> list[Comparison]:
    """Score each system by all metrics that papers use for the language.

    With a paired test the first system is the baseline of the others. Raises UserError for a test of a single system
    and for a bad SACREBLEU_SEED.
    """
    if significance.is_paired and len(systems) < 2:
        raise UserError("--paired-bs and --paired-ar need two or more translations: the first is the baseline")
    _check_seed()
    for name, lines in (*systems.items(), *references.items()):
        warn_of_subwords(name, lines)
    metrics = list(published_metrics(config.target_lang, config.tokenize))
    with working("scoring"):
        return [
            Comparison(note, dict(zip(systems, _scores(metric, systems, references, significance), strict=True)))
            for metric, note in metrics
        ]


def _check_seed() -> None:
    """Raise UserError if SACREBLEU_SEED is not a seed. sacreBLEU would use 0 in one part of a test only."""
    seed = os.environ.get("SACREBLEU_SEED", "1")
    if seed.lower() != "none" and not (seed.isascii() and seed.isdecimal() and len(seed) < 1000 and int(seed) > 0):
        raise UserError(f"SACREBLEU_SEED is {quoted(seed)}: set it to a positive whole number, or to none")


def _scores(metric: Metric, systems: Texts, references: Texts, config: SignificanceConfig) -> list[Score]:
    """The score of each system by one metric."""
    expected = list(references.values())
    if not config.is_paired:
        resamples = config.confidence_n if config.confidence else 1
        return [score(metric, lines, expected, resamples) for lines in systems.values()]
    test = PairedTest(
        list(systems.items()),
        {"": metric},
        expected,
        test_type="bs" if config.paired_bs else "ar",
        n_samples=config.paired_bs_n if config.paired_bs else config.paired_ar_n,
        n_ar_confidence=config.confidence_n if config.confidence else -1,
    )
    signatures, results = test()
    ((name, signature),) = signatures.items()
    found = [result for result in results[name] if isinstance(result, Result)]
    for result in found[1:]:
        if result.score == found[0].score:
            result.p_value = 1.0  # no difference is smaller than none
    return [Score(result.score, f"{name}|{signature}", "", result.mean, result.ci, result.p_value) for result in found]


def as_table(comparisons: Iterable[Comparison]) -> Table:
    """A table for a terminal: a row for each metric and system, without the columns that have no values."""
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
    """Two lines for each metric; with `rows`, a line below for each of several systems."""
    lines = []
    for comparison in comparisons:
        lines += [comparison.headline, f"    {comparison.note}"]
        if rows and len(comparison.scores) > 1:
            width = max(len(escaped(name)) for name in comparison.scores)
            lines += [_row(f"{escaped(name):{width}}", one) for name, one in comparison.scores.items()]
    return lines


def _row(name: str, one: Score) -> str:
    estimate = f"  (μ = {one.estimate})" if one.estimate else ""
    p_value = f"  p = {_p_value(one)}" if one.p_value is not None else ""
    return f"    {name}  {one.value:6.2f}{estimate}{p_value}"


def _p_value(one: Score) -> str:
    return "" if one.p_value is None else f"{one.p_value:.4f}"
