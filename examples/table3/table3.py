"""Compares trained rows of Table 3 with the paper's, as a Markdown table.

    PYTHONPATH=.. python table3.py "ROW ROW …" FOLDER…

Each FOLDER has the results of one seed: ROW.json for rows of variations.py, as result.py writes them.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import seeds
from result import Result
from seeds import Estimate
from variations import ROWS, arch, check_updates

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS

BASE = "base"
COLUMNS = [
    *(
        "row",
        "change",
        "here: N, d_model, d_ff, h, d_k, d_v",
        "seeds",
        "perplexity",
        "÷ base",
        "paper",
        "as in the paper?",
    ),
    *("BLEU", "− base", "paper", "as in the paper?", "parameters, 10⁶", "paper"),
]
AGREES, DISAGREES, UNKNOWN = "yes", "no", "cannot be told"


Results = Mapping[str, Sequence[Result]]  # of each row, one for each seed
Measure = Callable[[Result], float]


def log_perplexity(result: Result) -> float:
    """Differences of it are ratios of perplexities."""
    return math.log(result.perplexity)


def bleu(result: Result) -> float:
    return result.bleu


def check_comparable(results: Results) -> None:
    """Raise UserError if a row has a seed twice or several models, or the settings that all rows share differ."""
    for name, several in results.items():
        if repeated := {one.seed for one in several if [two.seed for two in several].count(one.seed) > 1}:
            raise UserError(f"{name} has several results of seed {min(repeated)}: give each seed once")
        for other in several[1:]:
            check_alike(several[0], other, several[0].model, other.model)
    first, *others = (one for several in results.values() for one in several)
    for other in others:
        check_alike(first, other, first.settings | divisors(first), other.settings | divisors(other))


def divisors(result: Result) -> dict[str, float]:
    """By what the sizes of a row's model are divided."""
    full, model = PRESETS[arch(result.row)].model_config(), TransformerConfig.from_dict(result.model)
    assert isinstance(full, TransformerConfig)
    return {"WIDTH": full.d_model / model.d_model, "DEPTH": full.encoder_layers / model.encoder_layers}


def check_alike(first: Result, other: Result, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise UserError if the options of two results, `ours` and `theirs`, differ."""
    if differences := [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]:
        pair = f"{first.row} of seed {first.seed} and {other.row} of seed {other.seed}"
        raise UserError(f"{pair} were not trained alike: they differ in {', '.join(differences)}")


def verdict(ours: Estimate, paper: float) -> str:
    """Whether a difference from base has the direction of the paper's.

    The paper's difference may be 0: then ours should not differ from 0 either.
    """
    if not ours.excludes(0.0):
        return AGREES if paper == 0.0 and ours.half_width is not None else UNKNOWN
    return AGREES if ours.mean * paper > 0 else DISAGREES


def compare(results: Results, row: str, measure: Measure) -> tuple[Estimate, Estimate | None]:
    """The mean of a row, and its difference from base: None for base itself, or without base.

    The spread between seeds is pooled over all rows: three seeds of a row alone say little about it.
    """
    spread = seeds.pooled([measure(one) for one in several] for several in results.values())
    values = [measure(one) for one in results[row]]
    base = [measure(one) for one in results.get(BASE, ())]
    other = seeds.difference(values, base, spread) if base and row != BASE else None
    return seeds.mean(values, spread), other


def sizes(options: Mapping[str, Any]) -> str:
    """The sizes of a model, from its options."""
    model = TransformerConfig.from_dict(options)
    numbers = (model.encoder_layers, model.d_model, model.d_ff, model.heads, model.key_size, model.value_size)
    return ", ".join(map(str, numbers))


def ratio(estimate: Estimate, digits: int) -> str:
    """The same for the logarithm of what is printed; the interval by its ends, as it is not symmetric."""
    shown = f"{math.exp(estimate.mean):.{digits}f}"
    if estimate.half_width is None:
        return shown
    low, high = (math.exp(estimate.mean + side * estimate.half_width) for side in (-1, 1))
    return f"{shown} ({low:.{digits}f} to {high:.{digits}f})"


def cells(name: str, results: Results) -> list[str]:
    """The cells of a row, whose intervals are those of 95 % confidence."""
    row, paper, several = ROWS[name], ROWS[BASE], results[name]
    perplexity, times_base = compare(results, name, log_perplexity)
    score, above_base = compare(results, name, bleu)
    return [
        *(row.letter, row.change, sizes(several[0].model), str(len(several))),
        ratio(perplexity, 2),
        *(ratio(times_base, 3) if times_base else "", f"{row.perplexity / paper.perplexity:.3f}"),
        verdict(times_base, math.log(row.perplexity / paper.perplexity)) if times_base else "",
        score.shown(1),
        *(above_base.shown(1, "+") if above_base else "", f"{row.bleu - paper.bleu:+.1f}"),
        verdict(above_base, round(row.bleu - paper.bleu, 1)) if above_base else "",
        *(f"{several[0].parameters / 1e6:.3f}", str(row.parameters or "")),
    ]


def totals(results: Results) -> str:
    """Cost and length of all trainings, in a sentence."""
    every = [one for several in results.values() for one in several]
    minutes = [one.minutes for one in every]
    return (
        f"{len(every)} trainings of {every[0].updates:,} updates, {statistics.mean(minutes):.0f} minutes each "
        f"({sum(minutes) / 60:.1f} hours in all), {sum(one.flops for one in every):.2g} operations."
    )


@command("table3.py")
@click.argument("rows")
@click.argument("folders", metavar="FOLDER...", type=PathName(), nargs=-1, required=True)
def main(rows: str, folders: tuple[Path, ...]) -> None:
    """Print a table of ROWS, separated by spaces, with their results in each FOLDER and those of the paper."""
    if unknown := [name for name in rows.split() if name not in ROWS]:
        raise UserError(f"there is no row {unknown[0]!r}, only {', '.join(ROWS)}")
    files = {name: [folder / f"{name}.json" for folder in folders] for name in ROWS if name in rows.split()}
    found = {name: [Result.read(path) for path in paths if path.exists()] for name, paths in files.items()}
    results = {name: several for name, several in found.items() if several}
    if not results:
        raise UserError(f"no row is complete in {', '.join(map(str, folders))}: run make table3")
    check_comparable(results)
    check_updates({name: [one.updates for one in several] for name, several in results.items()})
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for name in results:
        print(f"| {' | '.join(cells(name, results))} |")
    print(f"\n{totals(results)}")


if __name__ == "__main__":
    main()
