"""Forced decoding: scores given outputs."""

from collections.abc import Sequence

import torch

from nmtkit.data.batch import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import Hypothesis, length_penalties
from nmtkit.inference.protocol import InferenceModel
from nmtkit.text.vocabulary import EOS


@torch.inference_mode()
def score(
    model: InferenceModel, sources: Sequence[list[int]], targets: Sequence[list[int]], config: SearchConfig
) -> list[Hypothesis]:
    """Score each target (ids without EOS) of a source (ids with EOS), as the search scores the same output.

    Token log-probabilities are summed in fp32, one after the other, as in the search.
    """
    src, src_lengths = (tensor.to(model.device) for tensor in pad(sources))
    tgt, lengths = (tensor.to(model.device) for tensor in pad([[*ids, EOS] for ids in targets]))
    log_probs = model.score(src, src_lengths, tgt, lengths)
    totals = torch.zeros_like(log_probs[:, 0])
    for t in range(tgt.size(1)):
        totals = torch.where(lengths > t, totals + log_probs[:, t], totals)
    scores = totals / length_penalties(config, tgt.size(1)).to(model.device)[lengths]
    scored = zip(targets, scores.tolist(), log_probs.tolist(), strict=True)
    return [Hypothesis(ids, total, each[: len(ids) + 1]) for ids, total, each in scored]
