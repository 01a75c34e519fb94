"""Positional encodings (§3.5), which are added to the embeddings of both stacks."""

import torch
from torch import Tensor, nn

from nmtkit.errors import UserError
from nmtkit.model.sinusoids import sinusoid_table, too_long


def sinusoids(length: int, d_model: int, form: str = "sinusoidal") -> Tensor:
    """Return the table (length, D) of `sinusoid_table` as a tensor."""
    return torch.from_numpy(sinusoid_table(length, d_model, form))


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
            with torch.inference_mode(False):  # training must be able to use a table that validation has grown
                longer = sinusoids(2 * end, self.d_model, self.form)
                self.table = longer.to(device=self.table.device, dtype=self.table.dtype)
        return self.table[start:end]


class LearnedPositions(nn.Module):
    """One learned vector per position (Table 3, row E), up to a fixed number of positions."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the encodings (length, D) of positions start, start + 1, … Raises UserError beyond the last."""
        if start + length > self.table.size(0):
            raise UserError(too_long(start + length, self.table.size(0)))
        return self.table[start : start + length]
