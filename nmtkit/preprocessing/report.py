"""The page of --report: what was kept and dropped of the training text, lengths, and use of the vocabulary."""

import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from nmtkit.data.corpus import Dataset
from nmtkit.preprocessing.charts import histogram, length_histogram, rank_curve
from nmtkit.preprocessing.encoded import CorpusCounts, EncodedSplit, Example
from nmtkit.preprocessing.reasons import MARKS, REASONS
from nmtkit.preprocessing.statistics import (
    RATIO_LIMIT,
    RATIO_STEPS,
    SideStatistics,
    SplitStatistics,
    split_statistics,
)
from nmtkit.storage.atomic import staged_file
from nmtkit.text.languages import side_names
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import SPECIALS, unknown_percent
from nmtkit.wording import escaped, format_value

_FREQUENT = 20  # pieces shown
_PERCENTAGE = re.compile(r"[\d.]+%")
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f27; --ground: #fff; --quiet: #5c6675; --line: #d5dae2; --bar: #1f5fd0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaf0; --ground: #14171c; --quiet: #9aa5b5; --line: #343c48; --bar: #8ab4ff }
}
body { margin: 0 auto; padding: 1rem; max-width: 64rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground) }
h1 { font-size: 1.5rem } h2 { margin-top: 2rem; font-size: 1.2rem } h3 { margin: 1rem 0 .3rem; font-size: 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
td.number, th.number { text-align: right; white-space: nowrap } td { overflow-wrap: anywhere }
.texts { width: 100%; table-layout: fixed } small { color: var(--quiet) }
.charts { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: 0; flex: 1 1 20rem; max-width: 30rem }
figcaption { color: var(--quiet) } svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--quiet) }
rect { fill: var(--bar) } line { stroke: var(--line) } polyline { fill: none; stroke: var(--bar); stroke-width: 2 }
"""


def corpus_row(corpus: CorpusCounts, languages: tuple[str, str]) -> dict[str, object]:
    """The counts of a corpus by name: pairs, those kept and dropped, tokens and unknown tokens of each side."""
    tokens, unknown = corpus.tokens.tolist(), corpus.unknown.tolist()
    return {
        "corpus": corpus.prefix,
        "lines": corpus.pairs,
        "pairs": corpus.kept,
        "dropped": corpus.pairs - corpus.kept,
        **{f"{language} tokens": number for language, number in zip(languages, tokens, strict=True)},
        **{
            f"{language} unknown %": unknown_percent(*numbers)
            for language, *numbers in zip(languages, unknown, tokens, strict=True)
        },
    }


def write_report(path: Path, dataset: Dataset, encoded: EncodedSplit) -> None:
    """Write the page about a split of `dataset`. Raises UserError or RunError if the file cannot be written."""
    page = render_report(dataset, encoded)
    with staged_file(path) as file:
        file.write(page.encode())


def render_report(dataset: Dataset, encoded: EncodedSplit) -> str:
    """The page as HTML: complete in one file, without scripts."""
    languages = side_names((dataset.source_language, dataset.target_language))
    sides = dataset.source, dataset.target
    sizes = len(dataset.source.vocab), len(dataset.target.vocab)
    statistics = split_statistics(dataset.split(encoded.name), sizes)
    title = f"Dataset {dataset.folder}, {' to '.join(languages)}: training text"
    body = "".join(
        f"<h2>{heading}</h2>\n{content}\n"
        for heading, content in (
            ("Corpora", _corpora(encoded.corpora, languages)),
            ("Dropped pairs", _dropped(encoded.corpora)),
            ("Lengths of the kept pairs", _lengths(statistics, languages)),
            ("Use of the vocabulary", _vocabularies(statistics, sides, languages)),
            ("Examples of dropped pairs", _examples(encoded.examples, languages)),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n'
        f'<title>{_text(title)}</title>\n<link rel="icon" href="data:,">\n<style>{_STYLE}</style>\n'
        f"<h1>{_text(title)}</h1>\n{body}</html>\n"
    )


def _corpora(corpora: Sequence[CorpusCounts], languages: tuple[str, str]) -> str:
    rows = [corpus_row(corpus, languages) for corpus in corpora]
    return _table([*rows[0]], [[*row.values()] for row in rows])


def _dropped(corpora: Sequence[CorpusCounts]) -> str:
    """A table of the dropped pairs by reason and corpus."""
    counts = np.stack([corpus.marks for corpus in corpora], axis=1)  # (1 + reasons, corpora)
    rows = [
        (reason, ", ".join(REASONS[reason]), *counts[mark].tolist(), f"{counts[mark].sum() / counts.sum():.2%}")
        for reason, mark in MARKS.items()
        if counts[mark].any()
    ]
    if not rows:
        return "<p>No pair was dropped.</p>"
    note = "<p><small>A pair is counted under the first reason that applies, in this order.</small></p>"
    return _table(("reason", "options", *(corpus.prefix for corpus in corpora), "of all lines"), rows) + note


def _examples(examples: Sequence[Example], languages: tuple[str, str]) -> str:
    parts = []
    for reason, mark in MARKS.items():
        rows = [(example.source, example.target) for example in examples if example.mark == mark]
        if rows:
            parts.append(f"<h3>{reason}</h3>{_table(languages, rows, 'texts')}")
    return "".join(parts) or "<p>No pair was dropped.</p>"


def _lengths(statistics: SplitStatistics, languages: tuple[str, str]) -> str:
    sides = zip(languages, (statistics.source, statistics.target), strict=True)
    charts = [length_histogram(f"{escaped(language)}: tokens of a sentence", side.lengths) for language, side in sides]
    edges = [2 ** (number / RATIO_STEPS - RATIO_LIMIT) for number in range(len(statistics.ratios))]
    names = [f"{edge:.2f}–{edge * 2 ** (1 / RATIO_STEPS):.2f}" for edge in edges]
    ticks = {n * RATIO_STEPS: f"{2.0 ** (n - RATIO_LIMIT):g}" for n in range(2 * RATIO_LIMIT)}
    ratio = f"{escaped(languages[1])} tokens / {escaped(languages[0])} tokens of a pair"
    charts.append(histogram(ratio, statistics.ratios.tolist(), names, ticks))
    return f'<div class="charts">{"".join(charts)}</div>'


def _vocabularies(statistics: SplitStatistics, sides: tuple[Tokenizer, Tokenizer], languages: tuple[str, str]) -> str:
    both = list(zip(languages, (statistics.source, statistics.target), sides, strict=True))
    rows = [_vocabulary_row(language, side, len(tokenizer.vocab)) for language, side, tokenizer in both]
    curves = [
        rank_curve(f"{escaped(language)}: occurrences of a piece by its rank", side.frequencies())
        for language, side, _ in both
        if side.used
    ]
    frequent = [(language, " ".join(_frequent(side, tokenizer))) for language, side, tokenizer in both]
    return (
        _table([*rows[0]], [[*row.values()] for row in rows])
        + f'<div class="charts">{"".join(curves)}</div>'
        + _table(("language", f"the {_FREQUENT} most frequent pieces"), frequent)
    )


def _vocabulary_row(language: str, side: SideStatistics, size: int) -> dict[str, object]:
    return {
        "language": language,
        "vocabulary": size,
        "pieces used": side.used,
        "once only": side.used_once,
        **{f"for {share:.0%}": side.pieces_for(share) for share in (0.5, 0.9, 0.99)},
        "unknown": side.unknown,
        "unknown %": unknown_percent(side.unknown, side.tokens),
    }


def _frequent(side: SideStatistics, tokenizer: Tokenizer) -> Iterable[str]:
    order = np.argsort(-side.pieces, kind="stable")
    used = (tokenizer.vocab.pieces[number] for number in order if number >= len(SPECIALS) and side.pieces[number])
    return itertools.islice(used, _FREQUENT)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], kind: str = "") -> str:
    """A table. Columns of numbers are aligned to the right."""
    numeric = [isinstance(cell, int | float) or _PERCENTAGE.fullmatch(str(cell)) is not None for cell in rows[0]]
    sort = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{attribute}>{_text(name)}</th>" for attribute, name in zip(sort, columns, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{attribute}>{_text(cell)}</td>" for attribute, cell in zip(sort, row, strict=True))
        for row in rows
    )
    return f'<div class="wide"><table class="{kind}">\n<tr>{head}</tr>\n{body}\n</table></div>'


def _text(value: object) -> str:
    """A value as text of the page, with control characters escaped."""
    return escape(escaped(format_value(value)))
