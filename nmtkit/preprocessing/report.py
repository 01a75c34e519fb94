"""The page of --report: kept and dropped training pairs, lengths, and use of the vocabulary."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from nmtkit.config import flag
from nmtkit.data.corpus import Dataset
from nmtkit.data.sentences import Sentences
from nmtkit.preprocessing.config import REASONS
from nmtkit.preprocessing.encoded import CorpusCounts, EncodedSplit, Example
from nmtkit.preprocessing.reasons import MARKS
from nmtkit.storage.atomic import staged_file
from nmtkit.text.languages import side_names
from nmtkit.text.vocabulary import SPECIALS, UNK, unknown_percent
from nmtkit.wording import escaped, format_value

_PAIRS_PER_READ = 1 << 14
_SHARES = (0.5, 0.9, 0.99, 0.999)  # of sentences, in the table of lengths
_PERCENTAGE = re.compile(r"[\d.]+%")
_PAGE = Path(__file__).with_suffix(".html")

Counts = NDArray[np.int64]
Rows = Sequence[Sequence[object]]


def corpus_row(corpus: CorpusCounts, languages: tuple[str, str]) -> dict[str, object]:
    """Return the counts of a corpus by name: pairs, kept and dropped pairs, tokens and unknown tokens of each side."""
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
    """Write the page about a split of `dataset` as self-contained HTML without scripts. Raises UserError or RunError if
    this fails."""
    languages = side_names(dataset.languages)
    split = dataset.split(encoded.name)
    sides = [
        _count(sentences, len(tokenizer.vocab))
        for sentences, tokenizer in ((split.source, dataset.source), (split.target, dataset.target))
    ]
    corpora = [corpus_row(corpus, languages) for corpus in encoded.corpora]
    title = _text(f"Dataset {dataset.folder}, {' to '.join(languages)}: training text")
    body = "".join(
        f"<h2>{heading}</h2>\n{content}\n"
        for heading, content in (
            ("Corpora", _table([*corpora[0]], [[*row.values()] for row in corpora])),
            ("Dropped pairs", _dropped(encoded.corpora)),
            ("Lengths of the kept pairs, in tokens", _lengths([lengths for lengths, _ in sides], languages)),
            ("Use of the vocabulary", _vocabularies([pieces for _, pieces in sides], languages)),
            ("Examples of dropped pairs", _examples(encoded.examples, languages)),
        )
    )
    page = Template(_PAGE.read_text(encoding="utf-8")).substitute(title=title, body=body)
    with staged_file(path) as file:
        file.write(page.encode())


def _count(side: Sentences, size: int) -> tuple[Counts, Counts]:
    """Count the sentences of each length without EOS (longest + 1,), and the occurrences of each piece (size,)."""
    lengths, pieces = np.zeros(1, np.int64), np.zeros(size, np.int64)
    for begin in range(0, len(side), _PAIRS_PER_READ):
        tokens, read = side.gather(np.arange(begin, min(begin + _PAIRS_PER_READ, len(side))))
        counted = np.bincount(read - 1, minlength=len(lengths))
        counted[: len(lengths)] += lengths
        lengths = counted
        pieces += np.bincount(tokens, minlength=size)
    return lengths, pieces


def _dropped(corpora: Sequence[CorpusCounts]) -> str:
    counts = np.stack([corpus.marks for corpus in corpora], axis=1)  # (1 + reasons, corpora)
    rows = [
        (
            *(reason, ", ".join(map(flag, REASONS[reason])), *counts[mark].tolist()),
            f"{counts[mark].sum() / counts.sum():.2%}",
        )
        for reason, mark in MARKS.items()
        if counts[mark].any()
    ]
    if not rows:
        return "<p>No pair was dropped.</p>"
    note = "<p>A pair is counted under the first reason that applies, in this order.</p>"
    return _table(("reason", "options", *(corpus.prefix for corpus in corpora), "of all lines"), rows) + note


def _lengths(sides: Sequence[Counts], languages: tuple[str, str]) -> str:
    rows = []
    for language, lengths in zip(languages, sides, strict=True):
        sums = np.cumsum(lengths)
        within = [int(np.searchsorted(sums, share * sums[-1])) for share in _SHARES]
        rows.append((language, *within, len(lengths) - 1))
    return _table(("language", *(f"{100 * share:g}% at most" for share in _SHARES), "longest"), rows)


def _vocabularies(sides: Sequence[Counts], languages: tuple[str, str]) -> str:
    rows = [
        (
            *(language, len(pieces), np.count_nonzero(used := pieces[len(SPECIALS) :]), np.count_nonzero(used == 1)),
            unknown_percent(int(pieces[UNK]), int(pieces[UNK] + used.sum())),
        )
        for language, pieces in zip(languages, sides, strict=True)
    ]
    return _table(("language", "vocabulary", "pieces used", "once only", "unknown %"), rows)


def _examples(examples: Sequence[Example], languages: tuple[str, str]) -> str:
    parts = []
    for reason, mark in MARKS.items():
        rows = [(example.source, example.target) for example in examples if example.mark == mark]
        if rows:
            parts.append(f"<h3>{reason}</h3>{_table(languages, rows, 'texts')}")
    return "".join(parts) or "<p>No pair was dropped.</p>"


def _table(columns: Sequence[str], rows: Rows, kind: str = "") -> str:
    """Render a table. Columns of numbers are aligned to the right."""
    numeric = [isinstance(cell, int | float) or _PERCENTAGE.fullmatch(str(cell)) is not None for cell in rows[0]]
    sort = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{attribute}>{_text(name)}</th>" for attribute, name in zip(sort, columns, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{attribute}>{_text(cell)}</td>" for attribute, cell in zip(sort, row, strict=True))
        for row in rows
    )
    return f'<div class="wide"><table class="{kind}">\n<tr>{head}</tr>\n{body}\n</table></div>'


def _text(value: object) -> str:
    """Escape a value for HTML, including control characters."""
    return escape(escaped(format_value(value)))
