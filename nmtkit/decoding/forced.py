"""Forced decoding of given outputs: computes their scores, their soft alignment, and the attention of all heads.

Letters: S source length, T output length, both with EOS; L layers, H heads.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.padding import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import Hypothesis, length_penalties
from nmtkit.inference.protocol import InferenceModel
from nmtkit.text.vocabulary import BOS, EOS

_POSITIONS = 4096  # of source or target in one batch


def score(
    model: InferenceModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    config: SearchConfig,
    starts: Sequence[Sequence[int]] = (),
) -> list[Hypothesis]:
    """Score one target (ids without EOS) for each source (ids with EOS), like the search scores the same output.

    `starts` are fed before the targets, see `search`. Token log-probabilities are summed in fp32, one after the other,
    as in the search.
    """
    starts = starts or [()] * len(targets)
    begun = len(starts[0])
    tgt, lengths = pad([[*start, *ids, EOS] for start, ids in zip(starts, targets, strict=True)])
    log_probs = model.score(*pad(sources), tgt, lengths)[:, begun:]
    totals = np.zeros(len(tgt), np.float32)
    for t in range(log_probs.shape[1]):
        totals = np.where(lengths > t + begun, totals + log_probs[:, t], totals)
    scores = totals / length_penalties(config, tgt.shape[1])[lengths]
    scored = zip(targets, scores.tolist(), log_probs.tolist(), strict=True)
    return [Hypothesis(ids, total, each[: len(ids) + 1]) for ids, total, each in scored]


def with_attention(
    model: InferenceModel,
    sources: Sequence[list[int]],
    found: list[list[Hypothesis]],
    layer: int | None,
    starts: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """Add the attention (T, S) to the hypotheses found for each source (ids with EOS).

    `starts` are fed before the hypotheses, see `search`. `layer` is the number of a decoder layer, from 1; None for the
    default of `InferenceModel.alignment_layer`.
    """
    of_each = zip(sources, starts or [()] * len(sources), found, strict=True)
    pairs = [(source, start, hypothesis) for source, start, nbest in of_each for hypothesis in nbest]
    longest = max((max(len(source), len(hypothesis.ids) + 1) for source, _, hypothesis in pairs), default=1)
    size = max(1, _POSITIONS // longest)
    attended = []
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        tgt_in, _ = pad([[BOS, *start, *hypothesis.ids] for _, start, hypothesis in some])
        weights = model.alignment(*pad([source for source, *_ in some]), tgt_in, layer)
        for (source, begun, hypothesis), padded in zip(some, weights, strict=True):
            attention = padded[len(begun) :][: len(hypothesis.ids) + 1, : len(source)].copy()
            attended.append(replace(hypothesis, attention=attention))
    hypotheses = iter(attended)
    return [[next(hypotheses) for _ in nbest] for nbest in found]


def all_heads(
    model: InferenceModel, source: list[int], target: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the attention weights of all layers and heads for a source (ids with EOS) and an output (ids without).

    Returns the encoder's self-attention (L, H, S, S), the decoder's self-attention (L, H, T, T) and its attention to
    the source (L, H, T, S); L is 0 for a kind that the model does not have. Raises UserError for a model without
    attention and for an ensemble.
    """
    weights = model.attention(*pad([source]), pad([[BOS, *target]])[0])
    kinds = (weights.encoder, weights.decoder, weights.cross)  # each layer is (1, H, queries, keys)
    encoder, decoder, cross = (np.concatenate(kind) if kind else np.empty((0, 0, 0, 0), np.float32) for kind in kinds)
    return encoder, decoder, cross
