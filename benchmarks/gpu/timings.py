"""Times of single kernels, of the products of a model, and of an update as one CUDA graph, each with its decision."""

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gpu.checks import errors
from gpu.environment import captured
from gpu.kernels.attention import IntervalAttention, sentence_intervals
from gpu.kernels.decoding import beam_attention, candidates, source_attention
from gpu.kernels.loss import ALIGNED, cross_entropy_
from gpu.kernels.norm import Dropout, add_norm, add_norm_backward
from gpu.lengths import pair_lengths
from gpu.measuring import HEAD, KernelSetting, synchronize
from gpu.training import SEED, SMOOTHING, Training, TrainingSetting, make_updates
from nmtkit.inference.torch_inference import log_sum_exp, top_k
from nmtkit.inference.torch_transformer import attend_once
from nmtkit.machine.precision import autocast, resolve_device, resolve_precision
from nmtkit.model import loss_kernel
from nmtkit.model.packed_attention import PackedSide, Packing, attend_packed, attend_sentences
from nmtkit.text.vocabulary import EOS
from nmtkit.training.loss import MicroBatchLoss

_TODAY = "today's attention"
_SLOWEST_STEP = 1.5  # milliseconds of a decoding step with 512 sentences × 4 beams
_POSITIONS, _SOURCE, _BEAM = 14, 28, 4


def decide(what: str, found: float, today: float, limit: float) -> None:
    """Print whether a time is at most `limit` of today's."""
    if not math.isfinite(found + today):
        print(f"decision: {what}: none, not measured", flush=True)
    else:
        verdict = "take it" if found <= limit * today else "leave it"
        print(f"decision: {what}: {found / today:.2f} of today's time, limit {limit}: {verdict}", flush=True)


def check(setting: KernelSetting) -> None:
    """The errors of the kernels."""
    device = resolve_device(setting.device)
    for name, error in errors(device, resolve_precision(setting.precision, device)).items():
        print(f"{name}: error {error:.1e}{'' if error <= 0.02 else '; decision: drop this kernel'}", flush=True)
    print("decision: kernels without such a line are correct", flush=True)


def update(setting: KernelSetting, training: TrainingSetting) -> None:
    """An update by the host's launches, and its forward and backward pass as one CUDA graph."""
    device = resolve_device(setting.device)
    updates = make_updates(training)
    run = Training(training, device)
    for _ in range(3):
        synchronize(device)
        start = time.perf_counter()
        run.run(updates)
        queued = (time.perf_counter() - start) / len(updates)
        synchronize(device)
        eager = 1e3 * (time.perf_counter() - start) / len(updates)
    print(f"eager: {eager:.1f} ms an update; the host launches for {1e3 * queued:.1f} ms", flush=True)
    batch = updates[0].share[0][1][0].to(device)

    def compute() -> None:
        with autocast(device, resolve_precision(training.precision, device)):
            loss, _ = MicroBatchLoss(run.model, SMOOTHING)(batch)
        torch.autograd.backward(loss / updates[0].tokens)

    run.model.zero_grad(set_to_none=True)
    graph = setting.time("forward and backward pass as one graph", captured(compute, device))
    step = setting.time("norm and Adam", run.step)
    decide("one graph an update", graph + step, eager, 0.95)
    if graph + step > 0.85 * eager:
        print("decision: most of the time is the GPU's: kernels matter as much as launches", flush=True)


def attention(setting: KernelSetting) -> None:
    """Interval attention and today's, in encoder, decoder and between them."""
    source, target = pair_lengths(np.random.default_rng(SEED), 100_000)
    count = 1 + int(np.searchsorted(target.cumsum(), setting.tokens))
    source, target = source[:count], target[:count]
    for heads in setting.heads:
        times: dict[str, float] = {}
        for name, queries in (("encoder", source), ("decoder", target), ("cross", target)):
            keys = target if name == "decoder" else source
            for label, found in _attention_times(setting, heads, name, queries, keys).items():
                times[label] = times.get(label, 0.0) + found
        best = min(times, key=lambda label: math.inf if label == _TODAY else times[label])
        decide(f"{heads} heads, {best}", times[best], times.get(_TODAY, math.inf), 0.7)


def _attention_times(
    setting: KernelSetting, heads: int, name: str, query_lengths: NDArray[np.int32], key_lengths: NDArray[np.int32]
) -> dict[str, float]:
    """The times of both passes."""
    device, width, causal = resolve_device(setting.device), heads * HEAD, name == "decoder"
    sides = [
        PackedSide(torch.from_numpy(side).to(device), int(side.sum()), int(side.max()), int(128 - side.sum() % 128))
        for side in (query_lengths, key_lengths)
    ]
    T, S = (side.tokens + side.filler for side in sides)
    intervals = sentence_intervals(query_lengths, key_lengths, (T, S), causal, device)
    own = setting.random(T, width if name == "cross" else 3 * width).requires_grad_()
    memory = setting.random(S, 2 * width).requires_grad_() if name == "cross" else None
    inputs, weights = [own] if memory is None else [own, memory], setting.random(T, width)

    def usual() -> Tensor:
        parts = own.chunk(3, 1) if memory is None else (own, *memory.chunk(2, 1))
        q, k, v = (x.view(len(x), heads, HEAD) for x in parts)
        queries, keys = (Packing.of(side, attend_sentences) for side in sides)
        return attend_packed(attend_sentences, q, k, v, queries, keys, (-1, 0) if causal else (-1, -1))

    ways: dict[str, Callable[[], Tensor]] = {
        f"interval attention with tiles {tile}": partial(IntervalAttention.apply, own, memory, intervals, heads, tile)
        for tile in ((64, 64, 4), (128, 64, 8))
    }
    attend = next(iter(ways.values()))
    first, second = (torch.autograd.grad(attend(), inputs, weights) for _ in range(2))
    if not all(map(torch.equal, first, second)):
        print("decision: gradients differ between runs: leave interval attention", flush=True)
    if device.type != "cpu":
        ways[_TODAY] = usual

    def both(way: Callable[[], Tensor]) -> None:
        torch.autograd.backward(way(), weights)

    return {
        label: setting.time(f"{heads} heads, {name}: {label}", partial(both, way), inputs)
        for label, way in ways.items()
    }


def norm(setting: KernelSetting) -> None:
    """Residual sum, dropout and layer norm: in one kernel each way, and today's."""
    device, rows = resolve_device(setting.device), setting.tokens
    for heads in setting.heads:
        width = heads * HEAD
        x, y = (setting.random(rows, width).requires_grad_() for _ in range(2))
        gain, bias = torch.ones(width, device=device), torch.zeros(width, device=device)
        parameters, weights = [each.clone().requires_grad_() for each in (gain, bias)], setting.random(rows, width)
        dropout = Dropout(0.1, torch.tensor([7], dtype=torch.int32, device=device), call=3)
        normed = add_norm(x.detach(), y.detach(), gain, bias, dropout)

        def usual() -> None:
            low_gain, low_bias = (each.to(x.dtype) for each in parameters)  # noqa: B023
            out = F.layer_norm(x + F.dropout(y, 0.1), (width,), low_gain, low_bias)  # noqa: B023
            torch.autograd.backward(out, weights)  # noqa: B023

        today = setting.time(f"width {width}, today, both passes", usual, [x, y, *parameters])
        forward = min(
            setting.time(
                f"width {width}, forward, {block} rows a program",
                partial(add_norm, x.detach(), y.detach(), gain, bias, dropout, block, warps),
            )
            for block, warps in ((4, 2), (8, 4), (16, 8))
        )
        backward = min(
            setting.time(
                f"width {width}, backward, {programs} programs",
                partial(add_norm_backward, weights, weights, normed, gain, dropout, programs, warps),
            )
            for programs, warps in ((min(528, rows), 4), (min(1056, rows), 4), (min(2112, rows), 2))
        )
        decide(f"width {width}, add, dropout and norm in one kernel", forward + backward, today, 0.6)


def loss(setting: KernelSetting) -> None:
    """The loss kernel with wide accesses and today's, for a part of the rows and for all."""
    device, width = resolve_device(setting.device), setting.vocabulary
    for rows in (setting.tokens // 3, setting.tokens):
        target = torch.randint(EOS, width, (rows,), device=device)
        logits = setting.random(rows, width)
        today = setting.time(f"{rows} rows, today", lambda: loss_kernel.cross_entropy_(logits, target, 0.1, True))  # noqa: B023
        aligned = setting.random(rows, width + -width % ALIGNED)[:, :width]
        times = {
            (block, warps): setting.time(
                f"{rows} rows, wide accesses, blocks of {block}",
                partial(cross_entropy_, aligned, target, SMOOTHING, block, warps),
            )
            for block, warps in ((2048, 4), (4096, 8), (8192, 16))
        }
        best = min(times, key=times.__getitem__)
        print(f"{rows} rows: {1e6 * times[best] / rows:.1f} ns a row", flush=True)
        decide(f"{rows} rows, wide accesses with {best}", times[best], today, 0.97)


def decode(setting: KernelSetting) -> None:
    """The kernels of a decoding step of a model with 6 layers, whose shapes never change."""
    device, heads, layers = resolve_device(setting.device), setting.heads[0], 6
    width = heads * HEAD
    for sentences in setting.sentences:
        rows = sentences * _BEAM
        q, logits = setting.random(rows, width), setting.random(rows, setting.vocabulary)
        cache = setting.random(sentences, 64, _BEAM, 2, heads, HEAD)
        lengths = torch.full((sentences,), _POSITIONS, dtype=torch.int32, device=device)
        writers = torch.randint(_BEAM, (rows, 64), dtype=torch.uint8, device=device)
        memory = setting.random(sentences * _SOURCE, 2 * width)
        begins = torch.arange(sentences, device=device, dtype=torch.int32) * _SOURCE
        keys = setting.random(32, rows, width)
        pieces: dict[str, tuple[int, Callable[[], object]]] = {
            "attention of beams": (layers, lambda: beam_attention(q, cache, writers, lengths)),  # noqa: B023
            "attention to sources": (
                layers,
                lambda: source_attention(q, memory, begins, begins + _SOURCE, heads),  # noqa: B023
            ),
            "candidates": (1, lambda: candidates(logits, _BEAM)),  # noqa: B023
        }
        products = ((3 * width, width, 1), (width, width, 3), (4 * width, width, 1), (width, 4 * width, 1))
        for outputs, inputs, each in (*products, (setting.vocabulary, width, 0)):
            work = partial(F.linear, setting.random(rows, inputs), setting.random(outputs, inputs))
            pieces[f"product {inputs} to {outputs}"] = (each * layers or 1, work)
        times = {
            name: count * setting.time(f"{rows} rows, {name}, × {count}", work)
            for name, (count, work) in pieces.items()
        }
        reorder = partial(torch.index_select, keys, 1, torch.arange(rows, device=device))
        setting.time(f"{rows} rows, today: attention of beams, × 6", lambda: attend_once(q, keys, keys, heads))  # noqa: B023
        setting.time(f"{rows} rows, today: reordering of keys or values, × 12", reorder)
        setting.time(f"{rows} rows, today: candidates", lambda: (top_k(logits, _BEAM), log_sum_exp(logits)))  # noqa: B023
        total, slowest = sum(times.values()), max(times, key=times.__getitem__)
        verdict = "build it with this number" if total <= _SLOWEST_STEP * rows / 2048 else f"first improve: {slowest}"
        print(f"decision: {rows} rows: {total:.2f} ms a step without norms and host: {verdict}", flush=True)


def gemm(setting: KernelSetting) -> None:
    """Measure the matrix products of an update."""
    rows = setting.tokens
    for heads in setting.heads:
        width = heads * HEAD
        shapes = {"qkv": (width, 3 * width), "out": (width, width), "kv": (width, 2 * width)}
        shapes |= {"ffn 1": (width, 4 * width), "ffn 2": (4 * width, width), "vocabulary": (width, setting.vocabulary)}
        for name, (inputs, outputs) in shapes.items():
            x, matrix, bias = setting.random(rows, inputs), setting.random(outputs, inputs), setting.random(outputs)
            gradient, label = setting.random(rows, outputs), f"width {width}, {name}"
            time_of = partial(setting.time, flop=2.0 * rows * inputs * outputs)
            forward = time_of(f"{label}, forward", partial(F.linear, x, matrix, bias))
            time_of(f"{label}, gradient of inputs", partial(torch.mm, gradient, matrix))
            low = time_of(f"{label}, gradient of weights", partial(torch.mm, gradient.t(), x))
            setting.time(f"{label}, gradient of bias", partial(torch.sum, gradient, 0))
            if setting.device == "cpu":
                continue
            exact = time_of(f"{label}, gradient of weights in fp32", partial(torch.mm, gradient.t(), x, torch.float32))
            decide(f"{label}, gradients of weights in fp32", exact, low, 1.05)
            if name == "ffn 1":
                relu = setting.time(f"{label}, ReLU", partial(torch.relu, gradient))
                fused = time_of(f"{label}, with ReLU", partial(torch._addmm_activation, bias, x, matrix.t()))
                decide(f"{label}, ReLU in the product", fused, forward + relu, 0.97)
