"""Positional encodings (§3.5), which are added to the embeddings of both stacks."""

import math

import torch
from torch import Tensor, nn

from nmtkit.errors import UserError


def sinusoids(length: int, d_model: int, form: str = "sinusoidal") -> Tensor:
    """Compute the table (length, D): PE[pos, 2i] = sin(pos · r(i)), PE[pos, 2i+1] = cos(pos · r(i)).

    | form         | rate r(i)             | first pos |
    |--------------|-----------------------|-----------|
    | "sinusoidal" | 10000^(-2i / D)       | 0         |
    | "fairseq"    | 10000^(-i / (D/2 - 1))| 2         |

    The first form is the paper's (§3.5). fairseq orders all sines before all cosines: its dimension i is 2i here, and
    D/2 + i is 2i + 1.
    """
    first, pairs = (2, d_model / 2 - 1) if form == "fairseq" else (0, d_model / 2)
    position = torch.arange(first, first + length, dtype=torch.float64).unsqueeze(1)
    rate = torch.exp(torch.arange(d_model // 2, dtype=torch.float64) * (-math.log(10000.0) / pairs))
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table.float()


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines for sequences of any length, in one form of `sinusoids`. The table grows as needed."""

    table: Tensor

    def __init__(self, d_model: int, form: str) -> None:
        super().__init__()
        self.d_model, self.form = d_model, form
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        """Return the encodings (length, D) of positions start, start + 1, …"""
        end = start + length
        if end > self.table.size(0):
            longer = sinusoids(2 * end, self.d_model, self.form)
            self.table = longer.to(device=self.table.device, dtype=self.table.dtype)
        return self.table[start:end]


class LearnedPositions(nn.Module):
    """One learned vector per position (Table 3, row E), up to a fixed number of positions."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the encodings (length, D) of positions start, start + 1, … Raises UserError beyond the last one."""
        if start + length > self.table.size(0):
            raise UserError(
                f"a sequence of {start + length} tokens exceeds the {self.table.size(0)} learned positions "
                "of this model (--max-positions at training)"
            )
        return self.table[start : start + length]
