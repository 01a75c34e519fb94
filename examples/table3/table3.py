"""Compares trained rows of Table 3 with the paper's, as a Markdown table.

    python table3.py FOLDER [ROW]...

FOLDER has a folder for each row, named as in variations.py. Without ROW, all rows are compared.
"""

import re
from pathlib import Path
from typing import NamedTuple

import click
from variations import ROWS, Row

from nmtkit.checkpoint import LAST, load_checkpoint
from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.model.config import TransformerConfig

COLUMNS = [
    *("row", "change", "here: N, d_model, d_ff, h, d_k, d_v", "updates", "minutes"),
    *("perplexity", "paper", "÷ base", "paper", "BLEU", "paper", "− base", "paper", "parameters, 10⁶", "paper"),
]


class Result(NamedTuple):
    """The results of a trained row."""

    model: TransformerConfig
    updates: int
    minutes: float
    flops: float
    perplexity: float
    bleu: float
    parameters: int


def result(folder: Path) -> Result | None:
    """Read the result of the row in a folder; None if it is incomplete."""
    scores, checkpoint = folder / "scores.txt", folder / "averaged.pt"
    if not (scores.exists() and checkpoint.exists()):
        return None
    trained = load_checkpoint(folder / "checkpoints" / LAST)
    bleu = re.search(r"^BLEU\S* = ([\d.]+)", scores.read_text(), re.MULTILINE)
    assert bleu, f"{scores} has no BLEU"
    progress, parameters = trained.progress, sum(weights.numel() for weights in trained.weights.values())
    training = (progress["update"], progress["minutes"], progress["flops"])
    assert isinstance(trained.model_config, TransformerConfig)
    return Result(trained.model_config, *training, progress["valid_ppl"], float(bleu[1]), parameters)


def sizes(model: TransformerConfig) -> str:
    numbers = (model.encoder_layers, model.d_model, model.d_ff, model.heads, model.key_size, model.value_size)
    return ", ".join(map(str, numbers))


def cells(row: Row, ours: Result | None, base: Result | None) -> list[str]:
    """The cells of a row; unknown values are blank, as in the paper.

    A row is compared with base only if both were trained for the same number of updates.
    """
    paper = ROWS["base"]
    if ours and base and ours.updates != base.updates:
        base = None
    here = ["", "", "", "", "", "", "", ""]
    if ours:
        here = [sizes(ours.model), f"{ours.updates}", f"{ours.minutes:.1f}"]
        here += [f"{ours.perplexity:.2f}", f"{ours.perplexity / base.perplexity:.3f}" if base else ""]
        here += [f"{ours.bleu:.1f}", f"{ours.bleu - base.bleu:+.1f}" if base else "", f"{ours.parameters / 1e6:.3f}"]
    model, updates, minutes, perplexity, ratio, bleu, difference, parameters = here
    return [
        *(row.letter, row.change, model, updates, minutes),
        *(perplexity, f"{row.perplexity:.2f}", ratio, f"{row.perplexity / paper.perplexity:.3f}"),
        *(bleu, f"{row.bleu:.1f}", difference, f"{row.bleu - paper.bleu:+.1f}"),
        *(parameters, str(row.parameters or "")),
    ]


def same_direction(results: dict[str, Result], base: Result) -> tuple[int, int]:
    """Count rows whose perplexity differs from base in the same direction as in the paper.

    Returns that count and the number of compared rows: those with as many updates as base, and with a difference both
    here and in the paper.
    """
    ours = {name: one.perplexity - base.perplexity for name, one in results.items() if one.updates == base.updates}
    paper = {name: ROWS[name].perplexity - ROWS["base"].perplexity for name in ours}
    compared = [name for name in ours if ours[name] and paper[name]]
    return sum(ours[name] * paper[name] > 0 for name in compared), len(compared)


@command("table3.py")
@click.argument("folder", type=PathName())
@click.argument("rows", metavar="[ROW]...", nargs=-1, type=click.Choice(tuple(ROWS)))
def main(folder: Path, rows: tuple[str, ...]) -> None:
    """Print a table of the rows in FOLDER and of the paper's."""
    results = {name: one for name in rows or ROWS if (one := result(folder / name))}
    base = results.get("base")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for name, row in ROWS.items():
        print(f"| {' | '.join(cells(row, results.get(name), base))} |")
    minutes, flops = sum(one.minutes for one in results.values()), sum(one.flops for one in results.values())
    print(f"\n{len(results)} of {len(ROWS)} rows, {minutes:.0f} minutes of training, {flops:.2g} operations.", end=" ")
    if base:
        same, compared = same_direction(results, base)
        print(f"Perplexity lies on the paper's side of base in {same} of {compared} rows.")


if __name__ == "__main__":
    main()
