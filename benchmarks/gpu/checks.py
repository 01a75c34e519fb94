"""Errors of the kernels against torch in double precision, on a GPU or by Triton's interpreter on a CPU."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gpu.kernels.attention import IntervalAttention, Intervals, sentence_intervals
from gpu.kernels.decoding import beam_attention, candidates, source_attention
from gpu.kernels.loss import ALIGNED, cross_entropy_
from gpu.kernels.norm import Dropout, add_norm, add_norm_backward
from nmtkit.model.translation_model import mask_never_output
from nmtkit.text.vocabulary import EOS, PAD

_HEADS, _WIDTH, _BEAM = 2, 64, 4
_TILE = (64, 64, 4)


def errors(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """The relative error of each result, or the fraction of its elements that differ where they must be equal."""
    torch.manual_seed(1)
    return {
        **attention_errors(device, dtype),
        **norm_errors(device),
        **decoding_errors(device, dtype),
        **loss_errors(device, dtype),
    }


def _error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def _different(found: Tensor, expected: Tensor) -> float:
    return float((found != expected).double().mean())


def attention_errors(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Errors of output and gradients in an encoder, a decoder, and between both, with a filler on each side."""
    found = {}
    width = _HEADS * _WIDTH
    targets, sources = (np.array(each, np.int32) for each in ([5, 1, 70, 33, 64, 20], [7, 2, 40, 66, 3, 30]))
    for name, causal, cross in (("encoder", False, False), ("decoder", True, False), ("cross", False, True)):
        sizes = int(targets.sum()) + 5, int(sources.sum()) + 3 if cross else int(targets.sum()) + 5
        intervals = sentence_intervals(targets, sources if cross else targets, sizes, causal, device)
        shapes = [(sizes[0], width), (sizes[1], 2 * width)] if cross else [(sizes[0], 3 * width)]
        inputs = [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]
        own, memory = inputs[0], inputs[1] if cross else None
        out = IntervalAttention.apply(own, memory, intervals, _HEADS, _TILE)  # type: ignore[no-untyped-call]
        exact = [x.detach().double().requires_grad_() for x in inputs]
        expected = _attention(exact[0], exact[1] if cross else None, intervals)
        weights = torch.randn_like(out)
        gradients = torch.autograd.grad(out, inputs, weights)
        others = torch.autograd.grad(expected, exact, weights.double())
        found[f"attention, {name}"] = _error(out, expected)
        found[f"attention, {name}, gradient"] = max(map(_error, gradients, others))
        found[f"attention, {name}, filler"] = _different(out[-5:], torch.zeros_like(out[-5:]))
    return found


def _attention(own: Tensor, memory: Tensor | None, intervals: Intervals) -> Tensor:
    """Attention (T, H·D) by a mask."""
    parts = own.chunk(3, 1) if memory is None else (own, *memory.chunk(2, 1))
    q, k, v = (x.view(len(x), _HEADS, _WIDTH).transpose(0, 1) for x in parts)
    keys = torch.arange(k.size(1), device=k.device)
    allowed = (keys >= intervals.key_begins[:, None]) & (keys < intervals.key_ends[:, None])
    scores = (q @ k.transpose(1, 2) * _WIDTH**-0.5).masked_fill(~allowed, -1e30)
    attended: Tensor = (scores.softmax(-1) * allowed) @ v
    return attended.transpose(0, 1).flatten(1)


def norm_errors(device: torch.device) -> dict[str, float]:
    """Errors of the sub-layer's end in fp32, so that the mask can be read from the sum."""
    rows, width, rate = 37, 128, 0.3
    x, y, first, second = torch.randn(4, rows, width, device=device)
    gain, bias = torch.randn(2, width, device=device)
    dropout = Dropout(rate, torch.tensor([1234], dtype=torch.int32, device=device), call=7)
    normed = add_norm(x, y, gain, bias, dropout)
    kept = ((normed.sums - x).abs() > 1e-6).double()
    exact = [each.double().requires_grad_() for each in (x, y, gain, bias)]
    expected = F.layer_norm(exact[0] + exact[1] * kept / (1 - rate), (width,), exact[2], exact[3])
    gradients = torch.autograd.grad(expected, exact, (first + second).double())
    d_x, d_y, sums = add_norm_backward(first, second, normed, gain, dropout, programs=8)
    others = add_norm_backward(first, second, normed, gain, dropout, programs=3)
    return {
        "norm": _error(normed.out, expected),
        "norm, gradient": max(_error(d_x, gradients[0]), _error(d_y, gradients[1])),
        "norm, sums": max(map(_error, sums, (*gradients[2:], gradients[1].sum(0)))),
        "norm, share of dropped elements": float(abs(kept.mean() - (1 - rate)) > 0.05),
        "norm, mask with other numbers of programs": _different(others[1], d_y)
        + _different(add_norm(x, y, gain, bias, dropout, block=8).sums, normed.sums),
    }


def decoding_errors(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Errors of the two attentions and of the candidates of one step."""
    lengths, ends = [1, 17, 32], [9, 40, 41]
    rows, width = _BEAM * len(lengths), _HEADS * _WIDTH
    cache = torch.randn(len(lengths), 32, _BEAM, 2, _HEADS, _WIDTH, device=device).to(dtype)
    writers = torch.randint(_BEAM, (rows, 32), dtype=torch.uint8, device=device)
    q = torch.randn(rows, width, device=device).to(dtype)
    memory = torch.randn(ends[-1], 2 * width, device=device).to(dtype)
    begins = [0, *ends[:-1]]
    indices = (torch.tensor(each, dtype=torch.int32, device=device) for each in (lengths, begins, ends))
    lengths_there, begins_there, ends_there = indices
    hypotheses, sources = [], []
    for row in range(rows):
        sentence = row // _BEAM
        every = torch.arange(lengths[sentence], device=device)
        hypotheses.append(_attend(q[row], cache[sentence, every, writers[row, : len(every)].long()]))
        own = memory[begins[sentence] : ends[sentence]].view(-1, 2, _HEADS, _WIDTH)
        sources.append(_attend(q[row], own))
    logits = (torch.randn(9, 1003, device=device) * 3).to(dtype)
    values, columns, log_sums = candidates(logits, 4, block=256)
    masked = mask_never_output(logits.float())
    to_sources = source_attention(q, memory, begins_there, ends_there, _HEADS)
    return {
        "attention of beams": _error(beam_attention(q, cache, writers, lengths_there), torch.stack(hypotheses)),
        "attention to sources": _error(to_sources, torch.stack(sources)),
        "candidates": _different(values.sort(1, descending=True).values, masked.topk(4).values),
        "candidates, columns": _different(masked.gather(1, columns.long()), values),
        "candidates, log-sum-exp": _error(log_sums, masked.double().logsumexp(1)),
    }


def _attend(q: Tensor, keys_and_values: Tensor) -> Tensor:
    """Attention (H·D) of q (H·D) to (T, 2, H, D)."""
    k, v = keys_and_values.double().unbind(1)
    scores = (k * q.double().view(_HEADS, _WIDTH)).sum(-1) * _WIDTH**-0.5
    attended: Tensor = (scores.softmax(0).unsqueeze(2) * v).sum(0)
    return attended.flatten()


def loss_errors(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Errors of the smoothed loss and its gradient; a row has no target, and rows are aligned."""
    width, smoothing = 1003, 0.1
    rows = torch.randn(7, width + -width % ALIGNED, device=device)
    logits = (rows * 3).to(dtype)[:, :width]
    target = torch.randint(EOS, width, (7,), device=device)
    target[1] = PAD
    exact = logits.double().requires_grad_()
    log_probs = mask_never_output(exact.clone()).log_softmax(1)
    nll, uniform = -log_probs.gather(1, target[:, None]).squeeze(1), -log_probs[:, log_probs[0].isfinite()].mean(1)
    real = target != PAD
    expected = ((1 - smoothing) * nll + smoothing * uniform)[real].sum()
    (gradient,) = torch.autograd.grad(expected, exact)
    losses = cross_entropy_(logits, target, smoothing, block=256).sum(0)
    return {
        "loss": _error((1 - smoothing) * losses[0] + smoothing * losses[1], expected),
        "loss, gradient": _error(logits, gradient),
    }
