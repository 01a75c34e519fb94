"""Finds the k highest values of each row of a tensor, for GPUs."""

import torch
from torch import Tensor

_GROUP = 16  # columns that share a maximum
_SMALL = 1 << 15  # scores up to which `topk` is fastest; it may order equal ones differently


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest of each row of scores (R, W) and their columns, both (R, k), highest first; all if k > W.

    In long rows they are found in two stages, because they are in the k groups with the highest maxima: `topk` passes
    over its rows several times; in this way it reads only a sixteenth of them.
    """
    if scores.numel() <= _SMALL or scores.size(1) // _GROUP < 4 * k:
        values, columns = scores.topk(min(k, scores.size(1)))
        return values, columns
    width = scores.size(1)
    groups = width // _GROUP
    maxima = torch.unflatten(scores[:, : groups * _GROUP], 1, (_GROUP, groups)).amax(1)  # column c: group c % groups
    members = torch.arange(_GROUP, device=scores.device) * groups
    columns = (maxima.topk(k).indices.unsqueeze(2) + members).flatten(1)
    rest = torch.arange(groups * _GROUP, width, device=scores.device).expand(scores.size(0), -1)
    columns = torch.cat([columns, rest], dim=1)
    values, index = scores.gather(1, columns).topk(k)
    return values, columns.gather(1, index)
