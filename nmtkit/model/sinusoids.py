"""The sinusoidal positional encodings (§3.5)."""

import math

import numpy as np
from numpy.typing import NDArray


def sinusoid_table(length: int, d_model: int, form: str = "sinusoidal") -> NDArray[np.float32]:
    """Compute the table (length, D) with PE[pos, 2i] = sin(pos · r(i)) and PE[pos, 2i+1] = cos(pos · r(i)).

    | form         | rate r(i)             | first pos |
    |--------------|-----------------------|-----------|
    | "sinusoidal" | 10000^(-2i / D)       | 0         |
    | "fairseq"    | 10000^(-i / (D/2 - 1))| 2         |
    | "marian"     | 10000^(-i / (D/2 - 1))| 0         |
    | "rotary"     | 10000^(-2i / D)       | 0         |

    The first form is the paper's. fairseq and Marian store all sines before all cosines: their dimension i is 2i here,
    and their dimension D/2 + i is 2i + 1. The rotary form stores all cosines before all sines.
    """
    first, pairs = 2 if form == "fairseq" else 0, d_model / 2 - (form in ("fairseq", "marian"))
    position = np.arange(first, first + length, dtype=np.float64)[:, None]
    rate = np.exp(np.arange(d_model // 2) * (-math.log(10000.0) / pairs))
    if form == "rotary":
        return np.concatenate((np.cos(position * rate), np.sin(position * rate)), axis=1, dtype=np.float32)
    table = np.empty((length, d_model), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(position * rate), np.cos(position * rate)
    return table


def too_long(tokens: int, positions: int) -> str:
    """Create the error message for a sequence of more tokens than learned positions."""
    return (
        f"a sequence of {tokens} tokens exceeds the {positions} learned positions of this model (--max-positions at "
        "training)"
    )
