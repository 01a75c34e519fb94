"""Finds the k highest values of each row, in compiled code if it is available."""

import numpy as np
from numpy.typing import NDArray

from nmtkit.machine import native_build
from nmtkit.machine.threads import thread_count


def top_k(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k highest of each row of scores (R, W) and their columns, both (R, k), highest first; all W if k > W.

    In compiled code, the first of equal scores comes first.
    """
    if native_build.native is None:
        return _portable_top_k(scores, k)
    shape = len(scores), min(k, scores.shape[1])
    values, columns = np.empty(shape, np.float32), np.empty(shape, np.int64)
    native_build.native.top_k(np.ascontiguousarray(scores), values, columns, thread_count())
    return values, columns


def _portable_top_k(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    width = scores.shape[1]
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    best = np.argpartition(-scores, k - 1)[:, :k] if 0 < k < width else np.arange(width)[None, :].repeat(len(scores), 0)
    best = np.sort(best[:, :k], 1)
    order = np.argsort(-np.take_along_axis(scores, best, 1), 1, kind="stable")
    columns = np.take_along_axis(best, order, 1)
    return np.take_along_axis(scores, columns, 1), columns
