"""Forced decoding: the log-probabilities of given outputs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nmtkit.data.batch import pad
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import Hypothesis, SearchModel, length_penalties
from nmtkit.vocab import BOS, EOS

_POSITIONS = 1024  # that are projected to the vocabulary at once: the logits of more take too much memory


@torch.inference_mode()
def score(
    model: Callable[[Tensor, Tensor], Tensor],
    rows: Sequence[list[int]],
    targets: Sequence[list[int]],
    config: SearchConfig,
    device: torch.device,
) -> list[Hypothesis]:
    """The hypothesis that each target (without EOS) is for its source (with EOS), with the score of the search.

    It is one pass through the decoder: `model` gives logits or log-probabilities (B, T, W) for src (B, S) and
    tgt_in (B, T).
    """
    found: list[Hypothesis] = []
    penalty = length_penalties(config, max(map(len, targets), default=0) + 1)
    size = max(1, _POSITIONS // (max(map(len, targets), default=0) + 1))
    for start in range(0, len(rows), size):
        some = targets[start : start + size]
        src = pad(list(rows[start : start + size])).to(device)
        tgt_in = pad([[BOS, *ids] for ids in some]).to(device)
        tgt_out = pad([[*ids, EOS] for ids in some]).to(device)
        log_probs = model(src, tgt_in).log_softmax(-1, torch.float32).gather(2, tgt_out.unsqueeze(2)).squeeze(2)
        for ids, row in zip(some, log_probs.tolist(), strict=True):
            own = row[: len(ids) + 1]
            found.append(Hypothesis(ids, sum(own) / float(penalty[len(own)]), own))
    return found


@torch.inference_mode()
def score_by_steps(
    model: SearchModel,
    rows: Sequence[list[int]],
    targets: Sequence[list[int]],
    config: SearchConfig,
    device: torch.device,
) -> list[Hypothesis]:
    """The same by the steps of a search, whose numbers these are to the last bit."""
    lengths = torch.tensor([len(ids) + 1 for ids in targets], device=device)
    tgt_in = pad([[BOS, *ids] for ids in targets]).to(device)
    tgt_out = pad([[*ids, EOS] for ids in targets]).to(device)
    token_log_probs = torch.zeros(tgt_out.shape, dtype=torch.float32, device=device)
    totals = token_log_probs[:, 0].clone()
    state = model.start(model.encode(pad(list(rows)).to(device)))
    left = torch.arange(len(rows), device=device)  # (R,) the sentence of each row
    for t in range(tgt_in.size(1)):
        staying = (lengths[left] > t).nonzero().squeeze(1)
        left = left[staying]
        state.reorder(staying)
        log_probs = model.step(tgt_in[left, t], state).gather(1, tgt_out[left, t].unsqueeze(1)).squeeze(1)
        token_log_probs[left, t] = log_probs
        totals[left] += log_probs
    scores = totals / length_penalties(config, tgt_in.size(1)).to(device)[lengths]
    found = zip(targets, scores.tolist(), token_log_probs.tolist(), strict=True)
    return [Hypothesis(ids, own, each[: len(ids) + 1]) for ids, own, each in found]
