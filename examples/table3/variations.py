"""The rows of the paper's Table 3, with their results and the options of nmt-train that train them.

    python variations.py ROW WIDTH DEPTH

prints the options of ROW, with widths divided by WIDTH and the number of layers divided by DEPTH.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import click

from nmtkit.cli.command import command
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.presets import PRESETS


class Row(NamedTuple):
    """A row of the printed table: English to German, newstest2013, no averaging; None for a blank cell."""

    letter: str
    change: str
    perplexity: float
    bleu: float
    parameters: int | None = None  # in millions
    arch: str = ""


ROWS = {
    "base": Row("", "base", 4.92, 25.8, 65, "transformer_base"),
    "a_h1": Row("A", "h = 1, d_k = d_v = 512", 5.29, 24.9),
    "a_h4": Row("A", "h = 4, d_k = d_v = 128", 5.00, 25.5),
    "a_h16": Row("A", "h = 16, d_k = d_v = 32", 4.91, 25.8),
    "a_h32": Row("A", "h = 32, d_k = d_v = 16", 5.01, 25.4),
    "b_dk16": Row("B", "d_k = 16", 5.16, 25.1, 58),
    "b_dk32": Row("B", "d_k = 32", 5.01, 25.4, 60),
    "c_n2": Row("C", "N = 2", 6.11, 23.7, 36),
    "c_n4": Row("C", "N = 4", 5.19, 25.3, 50),
    "c_n8": Row("C", "N = 8", 4.88, 25.5, 80),
    "c_d256": Row("C", "d_model = 256, d_k = d_v = 32", 5.75, 24.5, 28),
    "c_d1024": Row("C", "d_model = 1024, d_k = d_v = 128", 4.66, 26.0, 168),
    "c_ff1024": Row("C", "d_ff = 1024", 5.12, 25.4, 53),
    "c_ff4096": Row("C", "d_ff = 4096", 4.75, 26.2, 90),
    "d_dropout0": Row("D", "P_drop = 0.0", 5.77, 24.6),
    "d_dropout2": Row("D", "P_drop = 0.2", 4.95, 25.5),
    "d_smoothing0": Row("D", "ε_ls = 0.0", 4.67, 25.3),
    "d_smoothing2": Row("D", "ε_ls = 0.2", 5.47, 25.7),
    "e_learned": Row("E", "learned positions", 4.92, 25.7),
    "big": Row("big", "d_model = 1024, d_ff = 4096, h = 16, P_drop = 0.3", 4.33, 26.4, 213, "transformer_big"),
}


def arch(row: str) -> str:
    """The preset of a row."""
    return ROWS[row].arch or f"table3_{row}"


def options(row: str, width: int, depth: int) -> list[str]:
    """The options of nmt-train for a row: widths divided by `width`, layers by `depth`, the same number of heads.

    Raises UserError if a size is not divisible.
    """
    full = PRESETS[arch(row)].model_config()
    assert isinstance(full, TransformerConfig)
    sizes = {
        "encoder-layers": (full.encoder_layers, depth),
        "decoder-layers": (full.decoder_layers, depth),
        "d-model": (full.d_model, width),
        "d-ff": (full.d_ff, width),
        "d-k": (full.key_size, width),
        "d-v": (full.value_size, width),
    }
    flags = ["--arch", arch(row)]
    for name, (size, divisor) in sizes.items():
        if size % divisor:
            raise UserError(f"{row}: {name} is {size}, which {divisor} does not divide")
        flags += [f"--{name}", str(size // divisor)]
    return flags


def check_updates(trained: Mapping[str, Collection[int]]) -> None:
    """Raise UserError unless all models, which are given by name, were trained for the same number of updates."""
    longest = max(max(updates) for updates in trained.values())
    if any(set(updates) != {longest} for updates in trained.values()):
        each = ", ".join(f"{name} {' or '.join(map(str, sorted(set(updates))))}" for name, updates in trained.items())
        raise UserError(f"the models have different numbers of updates ({each}): give make UPDATES={longest} or more")


@command("variations.py")
@click.argument("row", type=click.Choice(tuple(ROWS)))
@click.argument("width", type=click.IntRange(min=1))
@click.argument("depth", type=click.IntRange(min=1))
def main(row: str, width: int, depth: int) -> None:
    """Print the options of nmt-train for a row of Table 3."""
    print(*options(row, width, depth))


if __name__ == "__main__":
    main()
