"""Estimates what the recipe needs before it starts: disk, memory, updates, hours on this hardware, cost.

make runs this script with the settings of the recipe. A short trial with a model of the same size measures the speed.
"""

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import archives
import paper
import torch

from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train
from nmtkit.data.batch import Batch
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.model.memory import is_out_of_memory
from nmtkit.model.precision import resolve_device, resolve_precision
from nmtkit.training.loss import batch_loss
from nmtkit.training.mixed_precision import autocast
from nmtkit.training.save_dir import existing_part
from nmtkit.training.summary import describe_model, duration, peak_memory
from nmtkit.vocab import EOS

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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=paper.TRAININGS, required=True)
    parser.add_argument("--list", type=Path, required=True)
    parser.add_argument("--archives", type=Path, nargs="+", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--text-gb", type=float, required=True)
    for name in ("vocab-size", "gpus", "nodes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("training", nargs=argparse.REMAINDER, help="-- and the options of nmt-train")
    return parser.parse_args()


def training_options(flags: list[str]) -> tuple[ModelConfig, dict[str, Any]]:
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


def describe_archives(paths: list[Path]) -> str:
    missing = [path.name for path in paths if not path.exists()]
    return f"{len(paths) - len(missing)} of {len(paths)} there{'; to come: ' if missing else ''}{', '.join(missing)}"


def describe_disk(given: argparse.Namespace, kept: int, parameters: int) -> str:
    """Describe the needed and free disk space. Text is stored raw and cleaned; checkpoints hold Adam's moments too."""
    entries = archives.read(given.list)
    parts = {
        "archives": sum(entries[path.name].size or 0 for path in given.archives if not path.exists()) / 1e9,
        "text": 2 * given.text_gb,
        "dataset": given.text_gb / 2,
        "checkpoints": (kept + EXTRA_CHECKPOINTS) * 12 * parameters / 1e9,
    }
    free = shutil.disk_usage(existing_part(given.folder)).free / 1e9
    listed = ", ".join(f"{name} {size:.3g}" for name, size in parts.items())
    needed = sum(parts.values())
    return f"{needed:.3g} GB still to come ({listed}), {free:.3g} GB free{'' if free > needed else ': TOO LITTLE'}"


def main() -> None:
    given = arguments()
    model, training = training_options(given.training[1:])
    updates, batch_tokens = training["max_updates"], training["batch_tokens"]
    device = resolve_device("auto" if given.gpus else "cpu")
    devices = max(1, given.gpus) * given.nodes
    tokens = training["max_tokens"] or batch_tokens // devices
    seen = trial_that_fits(model, given.vocab_size, tokens, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    minutes = updates * batch_tokens / (seen.tokens_per_second * devices) / 60
    available, published = device_memory(device), paper.TRAININGS[given.size]
    lines = {
        "model": seen.model,
        "archives": describe_archives(given.archives),
        "disk": describe_disk(given, training["keep_last"], seen.parameters),
        "memory": f"{'about' if device.type == 'cuda' else 'at least'} {seen.memory:.2g} GiB on each device, which has "
        f"{available:.3g}{'' if available > seen.memory else ': TOO LITTLE'}",
        "updates": f"{updates} of about {batch_tokens} target tokens, whatever the number of devices",
        "time": f"about {duration(minutes)} of training on {devices} × {name} ({seen.tokens_per_second:.3g} target "
        "tokens a second each in a trial), validations and what comes before and after not counted",
        "cost": f"{paper.counted_flops(model, given.vocab_size, updates, batch_tokens):.2g} floating-point operations "
        "by the model's own count",
        "the paper": f"{published.updates} updates of the {given.size} model in {published.hours:g} hours on "
        f"{paper.GPUS} {paper.GPU}: {published.flops:.2g} by its own method, time × GPUs × rate",
    }
    print("The plan", *(f"  {name:11}{line}" for name, line in lines.items()), sep="\n")


if __name__ == "__main__":
    main()
