"""What a run says of itself before it begins, and how long it will still take."""

import resource
import shutil
import sys
import time

import torch
from torch import nn

from nmtkit.checkpoint import list_checkpoints
from nmtkit.data.corpus import Dataset
from nmtkit.model.transformer import Transformer
from nmtkit.training.config import StopConfig, TrainingOptions
from nmtkit.training.loader import Work
from nmtkit.training.save_dir import existing_part
from nmtkit.training.state import RunState, Window
from nmtkit.wording import counted

UPDATES_TO_MEASURE = 10  # before a run says how long it will take: the first ones are slower
LONG_UPDATE = 60.0  # seconds, from which on it is told of

_PARTS = {
    "embeddings": ("source_embedding", "target_embedding", "source_positions", "target_positions"),
    "encoder": ("encoder", "encoder_norm"),
    "decoder": ("decoder", "decoder_norm"),
    "output": ("projection",),
}


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Parameters by part of the model; a matrix that the output shares with an embedding counts as embedding."""
    counts = dict.fromkeys(_PARTS, 0)
    for name, parameter in model.named_parameters():
        (part,) = (part for part, modules in _PARTS.items() if name.split(".")[0] in modules)
        counts[part] += parameter.numel()
    return counts


def describe_model(model: Transformer) -> str:
    """Its sizes and its parameters by part, in one line."""
    config, counts = model.config, count_parameters(model)
    total = sum(counts.values())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    parts = ", ".join(f"{part} {_millions(count)}" for part, count in counts.items() if count)
    return (
        f"model: {_millions(total)} parameters ({parts}{'' if counts['output'] else ', output shared'}), "
        f"{config.encoder_layers}-{config.decoder_layers} layers, d_model {config.d_model}, d_ff {config.d_ff}, "
        f"{counted(config.heads, 'head')}{'' if trained == total else f'; {_millions(trained)} of them are trained'}"
    )


def describe_data(dataset: Dataset, split: str) -> str:
    """The split that is trained on and the vocabularies, in one line."""
    train, sizes = dataset.split(split), f"{len(dataset.source.vocab)} and {len(dataset.target.vocab)}"
    return (
        f"data: {dataset.folder}, {dataset.source_language}-{dataset.target_language}, {counted(len(train), 'pair')}, "
        f"{train.source.tokens} source and {train.target.tokens} target tokens, "
        f"vocabulary {len(dataset.target.vocab) if dataset.joined else sizes}"
    )


def describe_run(state: RunState, options: TrainingOptions, devices: str, precision: str) -> str:
    """What computes, and how much is to be done, in one line."""
    stop = options.stop
    at_most = "at most " if stop.max_epochs or stop.max_minutes or stop.patience else ""
    to_go = max(0, stop.max_updates - state.update)
    return (
        f"device: {devices}, {precision}; updates: {state.update} done, {at_most}{to_go} to go, "
        f"of about {options.batches.batch_tokens} target tokens"
    )


def describe_checkpoints(model: nn.Module, options: TrainingOptions) -> str:
    """What they will take, and what there is, in one line."""
    checkpoints = options.checkpoints
    kept = checkpoints.keep_last + checkpoints.keep_best
    size = _checkpoint_bytes(model, averaged=options.optimizer.ema > 0)
    free = shutil.disk_usage(existing_part(checkpoints.save_dir)).free
    there = len(list_checkpoints(checkpoints.save_dir))
    return (
        f"checkpoints: about {_size(size)} each, up to {kept} of them in {checkpoints.save_dir} ({_size(free)} free)"
        + ("" if free > (kept + 1 - there) * size else ": too little for all of them")
    )


def describe_lack_of_memory(model: nn.Module, options: TrainingOptions) -> str:
    """What training a model takes, whatever the batches, where that is more than there is, in one line."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    size = 4 * numbers + _checkpoint_bytes(model, averaged=options.optimizer.ema > 0)
    return (
        f"out of memory: the model's {_millions(numbers)} parameters, with their gradient and Adam's moments, take "
        f"about {_size(size)}: lower --d-model, --d-ff or the number of layers, or share the moments out over several "
        "devices (--shard-optimizer)"
    )


def describe_plan(work: Work) -> str:
    """How an epoch is dealt into updates, in one line."""
    batches = counted(len(work.update.micro_batches), "micro-batch", "micro-batches")
    return (
        f"plan: {counted(work.update.an_epoch, 'update')} an epoch; the next has {work.target_tokens} target tokens "
        f"in {batches}, {len(work.numbers)} of them on this device"
    )


def idle_devices(micro_batches: int, devices: int) -> str | None:
    """What to complain of where an update has too few micro-batches to keep all devices at work."""
    if devices == 1 or micro_batches >= 2 * devices:
        return None
    return (
        f"an update has {counted(micro_batches, 'micro-batch', 'micro-batches')} for {devices} devices, which wait for "
        "each other: lower --max-tokens, or raise --batch-tokens with a learning rate to match, until it has two or "
        "more for each"
    )


def long_update(target_tokens: int, micro_batches: int, seconds: float) -> str | None:
    """What to say of an update that takes so long that one wonders whether anything happens."""
    if seconds < LONG_UPDATE:
        return None
    return (
        f"an update takes about {duration(seconds / 60)}: {target_tokens} target tokens in "
        f"{counted(micro_batches, 'micro-batch', 'micro-batches')}; --batch-tokens makes updates smaller"
    )


def describe_rehearsal(window: Window, minutes_left: float) -> str:
    """What one update has taken, and the run would still take, in one line."""
    averages = window.averages()
    return (
        f"dry run: an update of {window.target_tokens} target tokens takes {window.seconds:.2f} s "
        f"({averages['tokens_per_second']} tokens a second, padding {averages['padding']:.1%}), "
        f"the run about {duration(minutes_left)} without its validations; nothing was written"
    )


class Pace:
    """How long a run will still take, from the time that its updates have taken since it was started."""

    def __init__(self, state: RunState) -> None:
        self.update, self.began = state.update, time.monotonic()

    def updates(self, state: RunState) -> int:
        """How many there have been since the start."""
        return state.update - self.update

    def minutes_left(self, state: RunState, stop: StopConfig, updates_an_epoch: int) -> float:
        """Until the first of the limits that can be foreseen, at the mean pace of all updates with what comes between
        them. --patience can end the run earlier. Before any update there is nothing to tell it by: 0."""
        if not self.updates(state):
            return 0.0
        minutes_an_update = (time.monotonic() - self.began) / 60 / self.updates(state)
        left = [(stop.max_updates - state.update) * minutes_an_update]
        if stop.max_epochs is not None:
            updates = (stop.max_epochs - state.epoch + 1) * updates_an_epoch - state.updates_in_epoch
            left.append(updates * minutes_an_update)
        if stop.max_minutes is not None:
            left.append(stop.max_minutes - state.minutes)
        return max(0.0, min(left))


def duration(minutes: float) -> str:
    """In its largest unit and the next: 3 h 20 min."""
    seconds = round(minutes * 60)
    for size, unit, fraction, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // fraction} {smaller}"
    return f"{seconds} s"


def peak_memory(device: torch.device) -> float:
    """The most memory that there has been in use, in GiB: of a GPU, by torch's tensors; else of main memory, by this
    process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, as getrusage counts
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _checkpoint_bytes(model: nn.Module, averaged: bool) -> int:
    """Of the weights, of their average, and of Adam's two moments of those that are trained, 4 bytes a number."""
    sets = [(1 + averaged + 2 * parameter.requires_grad, parameter.numel()) for parameter in model.parameters()]
    return 4 * sum(count * numbers for count, numbers in sets)


def _millions(count: int) -> str:
    return f"{_rounded(count / 1e6)} M" if count >= 10_000 else str(count)


def _size(count: float) -> str:
    return f"{_rounded(count / 1e9)} GB" if count >= 1e9 else f"{_rounded(count / 1e6)} MB"


def _rounded(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"
