"""Compares trained rows of Table 3 with the paper's, as a Markdown table.

    python -m compare_rows results.csv > report.md

Several files, for example from several machines, are combined.
"""

import csv
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from compare import Estimate, Spread
from report import table
from variations import ROWS

BASE = "base"
HEADER = (
    *("row", "change", "here: N, d_model, d_ff, h, d_k, d_v", "seeds", "perplexity", "÷ base", "paper"),
    *("as in the paper?", "BLEU", "− base", "paper", "as in the paper?", "parameters, 10⁶", "paper"),
)
Line = dict[str, str]
Results = Mapping[str, Sequence[Line]]  # of each row, one for each seed


def log_perplexity(line: Line) -> float:
    """The logarithm of the perplexity. Its differences are ratios of perplexities."""
    return math.log(float(line["perplexity"]))


def bleu(line: Line) -> float:
    return float(line["bleu"])


def read(paths: Iterable[Path]) -> Results:
    """The results by row. Exits with a message if they are not comparable."""
    lines: list[Line] = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            lines += csv.DictReader(file)
    for name in ("updates", "settings"):
        if len(values := {line[name] for line in lines}) > 1:
            remedy = "use at least the largest UPDATES" if name == "updates" else "train them alike"
            sys.exit(f"the rows differ in their {name} ({', '.join(sorted(values))}): {remedy}")
    if len({(line["row"], line["seed"]) for line in lines}) < len(lines):
        sys.exit("a row has several results of one seed: give each once")
    found = {row: [line for line in lines if line["row"] == row] for row in ROWS}
    return {row: several for row, several in found.items() if several}


def compare(results: Results, row: str, measure: Callable[[Line], float]) -> tuple[Estimate, Estimate | None]:
    """The mean of a row, and its difference from base: None for base itself, or without base.

    The spread between seeds is pooled over all rows: three seeds of a row alone say little about it.
    """
    values = {name: [measure(line) for line in several] for name, several in results.items()}
    spread = Spread.of(values.values())
    other = spread.difference(values[row], values[BASE]) if BASE in values and row != BASE else None
    return spread.mean(values[row]), other


def verdict(ours: Estimate | None, paper: float) -> str:
    """Whether a difference from base has the direction of the paper's; if that is 0, ours should not differ from 0."""
    if ours is None:
        return ""
    if not ours.excludes(0.0):
        return "yes" if paper == 0.0 and ours.half_width is not None else "no difference shown"
    return "yes" if ours.mean * paper > 0 else "no"


def ratio(estimate: Estimate | None, digits: int) -> str:
    """A ratio from the estimate of its logarithm, with the ends of the interval, which is not symmetric."""
    if estimate is None:
        return ""
    shown = f"{math.exp(estimate.mean):.{digits}f}"
    if estimate.half_width is None:
        return shown
    low, high = (math.exp(estimate.mean + side * estimate.half_width) for side in (-1, 1))
    return f"{shown} ({low:.{digits}f} to {high:.{digits}f})"


def cells(name: str, results: Results) -> list[str]:
    """The cells of a row, with 95 % intervals."""
    row, paper, several = ROWS[name], ROWS[BASE], results[name]
    perplexity, times_base = compare(results, name, log_perplexity)
    score, above_base = compare(results, name, bleu)
    gain = round(row.bleu - paper.bleu, 1)
    return [
        *(row.letter, row.change, several[0]["sizes"], str(len(several)), ratio(perplexity, 2), ratio(times_base, 3)),
        *(f"{row.perplexity / paper.perplexity:.3f}", verdict(times_base, math.log(row.perplexity / paper.perplexity))),
        *(score.shown(1), above_base.shown(1, "+") if above_base else "", f"{gain:+.1f}", verdict(above_base, gain)),
        *(f"{int(several[0]['parameters']) / 1e6:.3f}", str(row.parameters or "")),
    ]


def main(paths: Iterable[Path]) -> None:
    results = read(paths)
    print(table(HEADER, [cells(name, results) for name in results]))
    every = [line for several in results.values() for line in several]
    minutes, operations = [float(line["minutes"]) for line in every], sum(float(line["operations"]) for line in every)
    print(
        f"\n{len(every)} training runs of {int(every[0]['updates']):,} updates, {statistics.mean(minutes):.0f} minutes "
        f"each ({sum(minutes) / 60:.1f} hours in all), {operations:.2g} operations."
    )


if __name__ == "__main__":
    main(map(Path, sys.argv[1:]))
