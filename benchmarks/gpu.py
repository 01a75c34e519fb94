"""Benchmark: training updates on a GPU, with an ablation of each optimization.

    python benchmarks/gpu.py --arch transformer_base --batch-tokens 100000 --max-tokens 25000
    python benchmarks/gpu.py --arch transformer_big --lengths captions

The optimizations are compiled layers, fused attention, fused Adam and the loss in parts. Each row disables one of them.
Everything except reading a dataset is done as in nmt-train: length-bucketed batches with padding, the gradient of an
update, Adam's step. The sentences are random. Their lengths are distributed as in news (about 27 pieces) or in
captions (about 15, as in Multi30k). Utilization is relative to the nominal peak rate of the device; it counts the
operations of the model on real tokens, not on padding. The idle share is the fraction of the time without a kernel.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple
from unittest import mock

import click
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from nmtkit.data.batch import Batch, make_batch
from nmtkit.data.batching import BatchSampler
from nmtkit.model import attention
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.model.flops import peak_flops, training_flops
from nmtkit.model.precision import resolve_device, resolve_precision
from nmtkit.model.presets import PRESETS
from nmtkit.training import loss
from nmtkit.training.compiling import compile_layers
from nmtkit.training.config import OptimizerConfig
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.optim import make_optimizer
from nmtkit.training.ranks import Ranks

LENGTHS = {"news": (3.2, 0.5), "captions": (2.65, 0.3)}  # of a log-normal distribution, in pieces
PAIRS = 100_000
SEED = 1


class Update(NamedTuple):
    """The batches and statistics of an update."""

    share: list[tuple[int, Batch]]
    tokens: int  # target tokens
    padding: float  # fraction of all tokens
    flops: int


def make_updates(
    model: ModelConfig, vocabulary: int, lengths: str, batch_tokens: int, max_tokens: int, most: int
) -> list[Update]:
    """At most `most` updates of random sentences, fewer if the pairs run out; in pinned memory if there is a GPU."""
    random = np.random.default_rng(SEED)
    mean, deviation = LENGTHS[lengths]
    target = np.clip(random.lognormal(mean, deviation, PAIRS), 2, 250).astype(np.int32)
    source = np.clip(target * random.normal(1, 0.15, PAIRS), 2, 250).astype(np.int32)
    updates = []
    for update in islice(BatchSampler(source, target, batch_tokens, max_tokens, SEED).epoch(1), most):
        batches = []
        for indices in update.micro_batches:
            sides = [(random.integers(4, vocabulary, side[indices].sum()), side[indices]) for side in (source, target)]
            batch = make_batch(*sides[0], *sides[1])
            batches.append(batch.pin_memory() if torch.cuda.is_available() else batch)
        indices = np.concatenate(update.micro_batches)
        tokens, padded = (source[indices].sum() + target[indices].sum()), sum(batch.padded_tokens for batch in batches)
        flops = training_flops(model, vocabulary, source[indices], target[indices])
        updates.append(Update(list(enumerate(batches)), int(target[indices].sum()), 1 - tokens / padded, flops))
    return updates


MEANS = ("compiled layers", "fused attention", "fused Adam", "loss in parts")


@contextlib.contextmanager
def only(means: set[str]) -> Iterator[None]:
    """Disable the optimizations of attention and loss that are not in `means`."""
    with contextlib.ExitStack() as stack:
        if "fused attention" not in means:
            stack.enter_context(mock.patch.object(attention, "_fused_pays", return_value=False))
        if "loss in parts" not in means:
            stack.enter_context(mock.patch.object(loss, "_ROWS_GPU", 1 << 40))
        yield


class Training:
    """A model with its optimizer and the gradient of an update."""

    def __init__(
        self, config: ModelConfig, vocabulary: int, ranks: Ranks, precision: torch.dtype, means: set[str]
    ) -> None:
        torch.manual_seed(SEED)
        self.model = make_model(config, vocabulary, vocabulary).to(ranks.device)
        if "compiled layers" in means:
            compile_layers(self.model, ranks.device)
        if "fused Adam" in means:
            self.optimizer = make_optimizer(self.model, OptimizerConfig())
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        scaler = torch.amp.GradScaler(ranks.device.type, enabled=False)
        self.gradient = UpdateGradient(self.model, ranks, precision, scaler, 0.1, SEED, max_tokens=1 << 40)

    def update(self, number: int, update: Update) -> None:
        """Run one update and wait for it on the host."""
        self.gradient.compute(number, update.share, update.tokens, votes=())
        float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), torch.inf))
        self.optimizer.step()

    def run(self, updates: list[Update]) -> float:
        """Run the updates; return the seconds they took."""
        start = time.perf_counter()
        for number, update in enumerate(updates, 1):
            self.update(number, update)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start


def idle_share(run: Callable[[], float]) -> float | None:
    """Fraction of the time without a running kernel; None without a GPU. `run` returns its own duration in seconds."""
    if not torch.cuda.is_available():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds = run()
    busy: float = sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6
    return max(0.0, 1 - busy / seconds)


@click.command()
@click.option("--arch", type=click.Choice(list(PRESETS)), default="transformer_base", show_default=True)
@click.option("--vocabulary", default=37_000, show_default=True)
@click.option("--lengths", type=click.Choice(list(LENGTHS)), default="news", show_default=True)
@click.option("--batch-tokens", default=100_000, show_default=True, help="Target tokens of an update.")
@click.option("--max-tokens", default=25_000, show_default=True, help="Tokens of a micro-batch's side, with padding.")
@click.option("--updates", default=20, show_default=True, help="Timed updates, after three for warm-up.")
@click.option("--precision", default="bf16", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--compile/--no-compile", "compiled", default=True, help="Whether to compile layers.")
def main(
    arch: str,
    vocabulary: int,
    lengths: str,
    batch_tokens: int,
    max_tokens: int,
    updates: int,
    precision: str,
    device: str,
    compiled: bool,
) -> None:
    """Print target tokens per second, utilization and idle share, with all optimizations and without each."""
    config = PRESETS[arch].model_config()
    ranks = Ranks(resolve_device(device))
    dtype = resolve_precision(precision, ranks.device)
    name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else ranks.device.type
    peak = peak_flops(name, half=dtype != torch.float32)
    made = make_updates(config, vocabulary, lengths, batch_tokens, max_tokens, updates)
    work = [made[number % len(made)] for number in range(updates)]
    tokens, flops = sum(update.tokens for update in work), sum(update.flops for update in work)
    padding = sum(update.padding for update in work) / len(work)
    click.echo(
        f"{name}, torch {torch.__version__}, {arch}, {precision}; {tokens / len(work):.0f} target tokens an update, "
        f"padding {padding:.1%}, {flops / tokens / 1e6:.3g} MFLOP a target token"
    )
    means = set(MEANS) - (set() if compiled else {"compiled layers"})
    for left_out in ("nothing", *(one for one in MEANS if one in means)):
        torch.compiler.reset()
        with only(means - {left_out}):
            training = Training(config, vocabulary, ranks, dtype, means - {left_out})
            training.run(made[:3])
            seconds = training.run(work)
            idle = idle_share(partial(training.run, work[:5]))
        click.echo(
            f"without {left_out:16s} {tokens / seconds:10,.0f} target tokens/s"
            + (f", {flops / seconds / peak:.1%} of the peak" if peak else "")
            + (f", idle {idle:.1%}" if idle is not None else "")
        )


if __name__ == "__main__":
    main()
