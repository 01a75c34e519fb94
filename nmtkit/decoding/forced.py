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
    model: Callable[[Tensor, Tensor, Tensor], Tensor],
    rows: Sequence[list[int]],
    targets: Sequence[list[int]],
    config: SearchConfig,
    device: torch.device,
) -> list[Hypothesis]:
    """The hypothesis that each target (without EOS) is for its source (with EOS), with the score of the search.

    It is one pass through the decoder: `model` gives logits or log-probabilities (B, T, W) for src (B, S), the lengths
    of its sentences (B,), and tgt_in (B, T).
    """
    found: list[Hypothesis] = []
    penalty = length_penalties(config, max(map(len, targets), default=0) + 1)
    size = max(1, _POSITIONS // (max(map(len, targets), default=0) + 1))
    for start in range(0, len(rows), size):
        some = targets[start : start + size]
        src, lengths = (tensor.to(device) for tensor in pad(rows[start : start + size]))
        tgt_in, tgt_out = _targets(some, device)
        every = model(src, lengths, tgt_in).log_softmax(-1, torch.float32)
        log_probs = every.gather(2, tgt_out.unsqueeze(2)).squeeze(2)
        for ids, row in zip(some, log_probs.tolist(), strict=True):
            own = row[: len(ids) + 1]
            found.append(Hypothesis(ids, sum(own) / float(penalty[len(own)]), own))
    return found


def _targets(targets: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """What the decoder reads and what it should write, both (B, T), for targets without EOS."""
    tgt_in, _ = pad([[BOS, *ids] for ids in targets])
    tgt_out, _ = pad([[*ids, EOS] for ids in targets])
    return tgt_in.to(device), tgt_out.to(device)


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
    tgt_in, tgt_out = _targets(targets, device)
    token_log_probs = torch.zeros(tgt_out.shape, dtype=torch.float32, device=device)
    totals = token_log_probs[:, 0].clone()
    state = model.start(model.encode(*(tensor.to(device) for tensor in pad(rows))))
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
