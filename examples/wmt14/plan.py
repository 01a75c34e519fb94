"""Estimates what the recipe needs before it starts: disk, memory, updates, hours on this hardware, cost.

make runs this script with the settings of the recipe. A short trial with a model of the same size measures the speed.
"""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import archives
import click
import paper
import torch

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train
from nmtkit.data.batch import Batch
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.machine.precision import autocast, resolve_device, resolve_precision
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.text.vocabulary import EOS
from nmtkit.training.loss import batch_loss
from nmtkit.training.save_dir import existing_part
from nmtkit.training.summary import describe_model, duration, peak_memory

LENGTH = 32  # tokens per sentence in the trial
TRIAL_TOKENS_ON_CPU = 256  # per side
TRIAL_SECONDS = 1.0
EXTRA_CHECKPOINTS = 3  # besides those that are averaged: the best, one being written, and the average


class Trial(NamedTuple):
    """Measurements of a short training."""

    tokens_per_second: float  # target tokens per device
    memory: float  # GiB per device
    parameters: int
    model: str  # description of its sizes


def training_options(flags: Sequence[str]) -> tuple[ModelConfig, dict[str, Any]]:
    """Parse a command line of nmt-train; return the model options, and all options by name."""
    with nmt_train.make_context("nmt-train", ["DATASET", *flags]) as context:
        choose_model(context.params)
        return context.params["model"], context.params


def trial_that_fits(config: ModelConfig, vocabulary: int, tokens: int, device: torch.device) -> Trial:
    """As `trial`, with the tokens halved until they fit into memory. `--max-tokens auto` comes closer to the limit."""
    while True:
        try:
            return trial(config, vocabulary, tokens, device)
        except (MemoryError, RuntimeError) as error:
            if tokens <= LENGTH or not is_out_of_memory(error):
                raise
        tokens //= 2


def trial(config: ModelConfig, vocabulary: int, tokens: int, device: torch.device) -> Trial:
    """Repeat forward and backward passes over a micro-batch for about a second, and measure them."""
    tokens = tokens if device.type == "cuda" else min(tokens, TRIAL_TOKENS_ON_CPU)
    rows = torch.full((max(1, tokens // LENGTH), LENGTH), EOS)
    batch = Batch.unpadded(rows, rows, rows).to(device)
    model = make_model(config, vocabulary, vocabulary).to(device)
    passes = -1  # the first one is for warm-up
    start = time.monotonic()
    while passes < 1 or time.monotonic() - start < TRIAL_SECONDS:
        with autocast(device, resolve_precision("auto", device)):
            loss, _ = batch_loss(model, batch, smoothing=0.1)
        torch.autograd.backward(loss)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        passes += 1
        if passes == 0:
            start = time.monotonic()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    adam = 8 * parameters / 2**30
    speed = passes * rows.numel() / (time.monotonic() - start)
    return Trial(speed, peak_memory(device) + adam, parameters, describe_model(model))


def device_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1] / 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def describe_archives(paths: Sequence[Path]) -> str:
    missing = [path.name for path in paths if not path.exists()]
    return f"{len(paths) - len(missing)} of {len(paths)} there{'; to come: ' if missing else ''}{', '.join(missing)}"


def describe_disk(
    listed: Path, needed: Sequence[Path], folder: Path, text_gb: float, kept: int, parameters: int
) -> str:
    """Describe the needed and free disk space. Text is stored raw and cleaned; checkpoints hold Adam's moments too."""
    entries = archives.read(listed)
    parts = {
        "archives": sum(entries[path.name].size or 0 for path in needed if not path.exists()) / 1e9,
        "text": 2 * text_gb,
        "dataset": text_gb / 2,
        "checkpoints": (kept + EXTRA_CHECKPOINTS) * 12 * parameters / 1e9,
    }
    free = shutil.disk_usage(existing_part(folder)).free / 1e9
    detailed = ", ".join(f"{name} {size:.3g}" for name, size in parts.items())
    total = sum(parts.values())
    return f"{total:.3g} GB still to come ({detailed}), {free:.3g} GB free{'' if free > total else ': TOO LITTLE'}"


@command("plan.py")
@click.option("--size", required=True, type=click.Choice(tuple(paper.TRAININGS)))
@click.option("--list", "listed", required=True, type=PathName(), help="Sizes and checksums of the archives.")
@click.option("--archive", "needed", required=True, multiple=True, type=PathName())
@click.option("--folder", required=True, type=PathName(), help="Of the training.")
@click.option("--text-gb", required=True, type=click.FloatRange(min=0))
@click.option("--vocab-size", required=True, type=click.IntRange(min=1))
@click.option("--gpus", required=True, type=click.IntRange(min=0), help="On each machine; 0 is the CPU.")
@click.option("--nodes", required=True, type=click.IntRange(min=1), help="Machines.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    size: str,
    listed: Path,
    needed: tuple[Path, ...],
    folder: Path,
    text_gb: float,
    vocab_size: int,
    gpus: int,
    nodes: int,
    options: tuple[str, ...],
) -> None:
    """Print what a training with the OPTIONS of nmt-train needs. Put -- before them."""
    model, training = training_options(options)
    updates, batch_tokens = training["max_updates"], training["batch_tokens"]
    device = resolve_device("auto" if gpus else "cpu")
    devices = max(1, gpus) * nodes
    tokens = training["max_tokens"] or batch_tokens // devices
    seen = trial_that_fits(model, vocab_size, tokens, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    minutes = updates * batch_tokens / (seen.tokens_per_second * devices) / 60
    available, published = device_memory(device), paper.TRAININGS[size]
    lines = {
        "model": seen.model,
        "archives": describe_archives(needed),
        "disk": describe_disk(listed, needed, folder, text_gb, training["keep_last"], seen.parameters),
        "memory": f"{'about' if device.type == 'cuda' else 'at least'} {seen.memory:.2g} GiB on each device, which has "
        f"{available:.3g}{'' if available > seen.memory else ': TOO LITTLE'}",
        "updates": f"{updates} of about {batch_tokens} target tokens, whatever the number of devices",
        "time": f"about {duration(minutes)} of training on {devices} × {name} ({seen.tokens_per_second:.3g} target "
        "tokens a second each in a trial), validations and what comes before and after not counted",
        "cost": f"{paper.counted_flops(model, vocab_size, updates, batch_tokens):.2g} floating-point operations "
        "by the model's own count",
        "the paper": f"{published.updates} updates of the {size} model in {published.hours:g} hours on "
        f"{paper.GPUS} {paper.GPU}: {published.flops:.2g} by its own method, time × GPUs × rate",
    }
    print("The plan", *(f"  {name:11}{line}" for name, line in lines.items()), sep="\n")


if __name__ == "__main__":
    main()
