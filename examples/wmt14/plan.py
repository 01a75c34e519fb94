"""Estimates disk, memory, hours on this hardware and cost before the recipe starts.

    GPUS=8 NODES=1 python -m plan en-de base --text-gb 1.4 --vocab-size 37000 -- OPTIONS OF NMT-TRAIN

A trial of one second with a model of this size measures the speed.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import paper
import torch
from corpus import CORPORA, known_archives

from nmtkit.cli.train import choose_model
from nmtkit.cli.train import main as nmt_train
from nmtkit.data.batch import Batch
from nmtkit.machine.memory import is_out_of_memory
from nmtkit.machine.precision import autocast, resolve_device, resolve_precision
from nmtkit.model.architectures import make_model
from nmtkit.model.config import ModelConfig
from nmtkit.text.vocabulary import EOS
from nmtkit.training.loss import MicroBatchLoss

LENGTH = 32  # tokens per sentence in the trial


def training_options(flags: list[str]) -> tuple[ModelConfig, dict[str, Any]]:
    """The model options, and all options by name, from a command line of nmt-train."""
    with nmt_train.make_context("nmt-train", ["DATASET", *flags]) as context:
        choose_model(context.params)
        return context.params["model"], context.params


def trial(config: ModelConfig, vocabulary: int, tokens: int, device: torch.device) -> tuple[float, int]:
    """The target tokens per second of a device, and the number of parameters. A micro-batch is halved until it fits."""
    model = make_model(config, vocabulary, vocabulary).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    while True:
        try:
            return speed(model, tokens, device), parameters
        except (MemoryError, RuntimeError) as error:
            if tokens <= LENGTH or not is_out_of_memory(error):
                raise
        tokens //= 2


def speed(model: Any, tokens: int, device: torch.device) -> float:
    """Repeat forward and backward passes over a micro-batch for about a second; the first is for warm-up."""
    rows = torch.full((max(1, tokens // LENGTH), LENGTH), EOS)
    batch, passes, start = Batch.unpadded(rows, rows, rows).to(device), -1, 0.0
    while passes < 1 or time.monotonic() - start < 1:
        with autocast(device, resolve_precision("auto", device)):
            loss, _ = MicroBatchLoss(model, smoothing=0.1)(batch)
        torch.autograd.backward(loss)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        passes += 1
        start = start or time.monotonic()
    return passes * rows.numel() / (time.monotonic() - start)


def plan(pair: str, size: str, text_gb: float, vocabulary: int, flags: list[str]) -> dict[str, str]:
    """The lines of the plan, by name."""
    config, training = training_options(flags)
    gpus, nodes = int(os.environ.get("GPUS", "0")), int(os.environ.get("NODES", "1"))
    device, devices = resolve_device("auto" if gpus else "cpu"), max(1, gpus) * nodes
    updates, batch_tokens = training["max_updates"], training["batch_tokens"]
    tokens = training["max_tokens"] or batch_tokens // devices
    per_second, parameters = trial(config, vocabulary, tokens if gpus else min(tokens, 256), device)
    names = {archive for name, (archive, _) in CORPORA.items() if pair == "en-fr" or name not in ("un", "giga")}
    parts = {
        "archives, if they are downloaded": sum(known_archives()[name].size for name in names) / 1e9,
        "text": text_gb,
        "dataset": text_gb / 2,
        "checkpoints": (training["keep_last"] + 3) * 12 * parameters / 1e9,  # with Adam's moments
    }
    name = torch.cuda.get_device_name(device) if gpus else f"CPU, {torch.get_num_threads()} threads"
    hours = updates * batch_tokens / (per_second * devices) / 3600
    published = paper.TRAININGS[size]
    return {
        "model": f"{parameters / 1e6:.3g} M parameters",
        "disk": ", ".join(f"{part} {gb:.3g} GB" for part, gb in parts.items())
        + f"; {shutil.disk_usage(Path.cwd()).free / 1e9:.3g} GB free",
        "updates": f"{updates} of about {batch_tokens} target tokens, on any number of devices",
        "time": f"about {hours:.3g} hours of training on {devices} × {name}, without validations "
        f"({per_second:.3g} target tokens a second each in a trial)",
        "cost": f"{paper.counted_flops(config, vocabulary, updates, batch_tokens):.2g} floating-point operations",
        "the paper": f"{published.updates} updates in {published.hours:g} hours on {paper.GPUS} × {paper.GPU}: "
        f"{published.flops:.2g} by time × GPUs × rate",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", choices=paper.VOCABULARY)
    parser.add_argument("size", choices=paper.TRAININGS)
    parser.add_argument("--text-gb", required=True, type=float)
    parser.add_argument("--vocab-size", required=True, type=int)
    split = sys.argv.index("--")
    given, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    lines = plan(given.pair, given.size, given.text_gb, given.vocab_size, options)
    print("The plan", *(f"  {name:11}{line}" for name, line in lines.items()), sep="\n")


if __name__ == "__main__":
    main()
