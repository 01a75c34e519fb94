"""The attention of a model for outputs that were found: of one decoder layer to the source, which softly aligns the
pieces, or of all layers and heads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from nmtkit.data.batch import pad
from nmtkit.decoding.search import Hypothesis
from nmtkit.inference.protocol import InferenceModel
from nmtkit.vocab import BOS

_POSITIONS = 4096  # of target or source that are computed together


@torch.inference_mode()
def with_attention(
    model: InferenceModel, rows: Sequence[list[int]], found: list[list[Hypothesis]], layer: int | None
) -> list[list[Hypothesis]]:
    """The hypotheses found for sources (with EOS), with their attention (T, S), EOS counted on both sides.

    `layer` is the number of a decoder layer, from 1, or None for the usual one (`InferenceModel.alignment_layer`).
    """
    pairs = [(row, hypothesis) for row, nbest in zip(rows, found, strict=True) for hypothesis in nbest]
    longest = max((max(len(row), len(hypothesis.ids) + 1) for row, hypothesis in pairs), default=1)
    size = max(1, _POSITIONS // longest)
    attended = []
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        src, lengths = (tensor.to(model.device) for tensor in pad([row for row, _ in some]))
        tgt_in = pad([[BOS, *hypothesis.ids] for _, hypothesis in some])[0].to(model.device)
        weights = model.alignment(src, lengths, tgt_in, layer).cpu()
        for (row, hypothesis), own in zip(some, weights, strict=True):
            attention = own[: len(hypothesis.ids) + 1, : len(row)].numpy().copy()
            attended.append(replace(hypothesis, attention=attention))
    hypotheses = iter(attended)
    return [[next(hypotheses) for _ in nbest] for nbest in found]


@torch.inference_mode()
def all_heads(
    model: InferenceModel, row: list[int], target: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """The weights of all L layers and H heads for a source (with EOS) and an output (without), EOS counted on both
    sides: of the encoder (L, H, S, S), of the decoder to itself (L, H, T, T) and to the source (L, H, T, S)."""
    src, lengths = (tensor.to(model.device) for tensor in pad([row]))
    weights = model.attention(src, lengths, pad([[BOS, *target]])[0].to(model.device))
    encoder, decoder, cross = (
        torch.cat(layers).float().cpu().numpy() for layers in (weights.encoder, weights.decoder, weights.cross)
    )
    return encoder, decoder, cross
