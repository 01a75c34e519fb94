"""Merges low-rank additions into the matrices of a model, without torch; `nmtkit.model.lora` trains them."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

_A, _B, _MATRIX = ".lora_a.", ".lora_b.", ".weight"  # parts of parameter names


def merged(weights: Mapping[str, NDArray[np.float32]], scale: float) -> Weights:
    """Merge each addition into its matrix W + s·B·A (outputs, inputs) in float32. Other weights are unchanged."""
    adapted = dict.fromkeys(filter(None, map(_matrix_of, weights)))
    plain = {name: weight for name, weight in weights.items() if _matrix_of(name) is None}
    additions = {name: np.concatenate(list(_products(name, weights))) for name in adapted}
    return plain | {name: weights[name] + np.float32(scale) * addition for name, addition in additions.items()}


def _products(matrix: str, weights: Mapping[str, NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield B·A (outputs, inputs) of each projection of a matrix, in the order of its rows."""
    layer = matrix.removesuffix(_MATRIX)
    number = 0
    while (a := weights.get(f"{layer}{_A}{number}")) is not None:
        yield weights[f"{layer}{_B}{number}"] @ a
        number += 1


def _matrix_of(name: str) -> str | None:
    """Return the name of the matrix that an addition's parameter belongs to; None for any other parameter."""
    for part in (_A, _B):
        layer, found, _ = name.rpartition(part)
        if found:
            return layer + _MATRIX
    return None
