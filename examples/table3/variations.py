"""The rows of the paper's Table 3, with their results and the options of nmt-train that train them."""

import sys
from typing import NamedTuple

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


def options(row: str, width: int, depth: int) -> str:
    """The options of nmt-train for a row: widths divided by `width`, layers by `depth`, the same number of heads."""
    arch = ROWS[row].arch or f"table3_{row}"
    full = PRESETS[arch].model_config()
    assert isinstance(full, TransformerConfig)
    sizes = {
        "encoder-layers": (full.encoder_layers, depth),
        "decoder-layers": (full.decoder_layers, depth),
        "d-model": (full.d_model, width),
        "d-ff": (full.d_ff, width),
        "d-k": (full.key_size, width),
        "d-v": (full.value_size, width),
    }
    if uneven := [name for name, (size, divisor) in sizes.items() if not divisor or size % divisor]:
        sys.exit(f"WIDTH={width} DEPTH={depth}: do not divide {', '.join(uneven)} of the row {row}")
    return " ".join([f"--arch {arch}", *(f"--{name} {size // divisor}" for name, (size, divisor) in sizes.items())])
