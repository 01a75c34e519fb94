"""The attention that a model pays, for outputs that were found: of a decoder's layer to the source, which is a soft
alignment of the pieces, or of all that there is."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.data.batch import pad
from nmtkit.decoding.search import Hypothesis
from nmtkit.errors import UserError
from nmtkit.model.transformer import Transformer
from nmtkit.vocab import BOS

_POSITIONS = 4096  # of target or source that are looked at together


def chosen_layer(model: Transformer, layer: int | None) -> int:
    """The number, from 0, of the layer that is asked for, counted from 1; without, of the last but one, which aligns
    better than the last (Garg et al. 2019). Raises UserError where the model has no such layer."""
    layers = model.config.decoder_layers
    if layer is not None and layer > layers:
        raise UserError(f"--alignment-layer {layer}: the model has {layers} decoder layers")
    return max(0, layers - 2) if layer is None else layer - 1


@torch.inference_mode()
def with_attention(
    models: Sequence[Transformer], rows: Sequence[list[int]], found: list[list[Hypothesis]], layer: int | None
) -> list[list[Hypothesis]]:
    """The hypotheses that were found for sources (with EOS), with their attention (T, S), EOS counted on both sides.

    It is the mean over the heads of a layer, and over the models of an ensemble.
    """
    pairs = [(row, hypothesis) for row, nbest in zip(rows, found, strict=True) for hypothesis in nbest]
    longest = max((max(len(row), len(hypothesis.ids) + 1) for row, hypothesis in pairs), default=1)
    size = max(1, _POSITIONS // longest)
    attended = []
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        device = models[0].target_embedding.weight.device
        src, lengths = (tensor.to(device) for tensor in pad([row for row, _ in some]))
        tgt_in = pad([[BOS, *hypothesis.ids] for _, hypothesis in some])[0].to(device)
        weights = torch.stack([_attention(model, src, lengths, tgt_in, layer) for model in models]).mean(0).cpu()
        for (row, hypothesis), own in zip(some, weights, strict=True):
            attention = own[: len(hypothesis.ids) + 1, : len(row)].numpy().copy()
            attended.append(replace(hypothesis, attention=attention))
    hypotheses = iter(attended)
    return [[next(hypotheses) for _ in nbest] for nbest in found]


def _attention(model: Transformer, src: Tensor, lengths: Tensor, tgt_in: Tensor, layer: int | None) -> Tensor:
    """(B, T, S) the mean over a layer's heads."""
    layers: list[Tensor] = []
    model.decode(tgt_in, model.encode(src, lengths), record_cross=layers)
    return layers[chosen_layer(model, layer)].float().mean(1)


@torch.inference_mode()
def all_heads(
    model: Transformer, row: list[int], target: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """The weights of all L layers and H heads for a source (with EOS) and an output (without), EOS counted on both
    sides: the encoder's (L, H, S, S), the decoder's to itself (L, H, T, T) and to the source (L, H, T, S)."""
    device = model.target_embedding.weight.device
    src, lengths = (tensor.to(device) for tensor in pad([row]))
    weights = model.attention_weights(src, lengths, pad([[BOS, *target]])[0].to(device))
    encoder, decoder, cross = (
        torch.cat(layers).float().cpu().numpy() for layers in (weights.encoder, weights.decoder, weights.cross)
    )
    return encoder, decoder, cross
