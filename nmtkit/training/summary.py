"""Describes a run in words, and estimates the time left."""

import resource
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from nmtkit.data.corpus import Dataset, Split
from nmtkit.model.translation_model import TranslationModel
from nmtkit.storage.run_files import LAST, list_checkpoints
from nmtkit.training.config import StopConfig, TrainingOptions
from nmtkit.training.construction import checkpoint_bytes
from nmtkit.training.save_dir import existing_part
from nmtkit.training.state import RunState, Window
from nmtkit.wording import counted, format_bytes, in_millions

UPDATES_TO_MEASURE = 10  # before the time left is estimated, since the first ones are slower
_CHECKPOINTS_TO_AVERAGE = 5  # as in the paper for base models (§6.1)


def describe_model(model: TranslationModel) -> str:
    """Describe the sizes of a model and its parameters by part."""
    counts = model.count_parameters()
    total = sum(counts.values())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    parts = ", ".join(f"{part} {in_millions(count)}" for part, count in counts.items() if count)
    return (
        f"{in_millions(total)} parameters ({parts}{'' if counts['output'] else ', output shared'}), "
        f"{model.config.summary()}{'' if trained == total else f'; {in_millions(trained)} of them are trained'}"
    )


def describe_data(dataset: Dataset, train: Split) -> str:
    """Describe the training split and the vocabularies."""
    sizes = f"{len(dataset.source.vocab)} and {len(dataset.target.vocab)}"
    return (
        f"{dataset.folder}, {'-'.join(dataset.languages)}, {counted(len(train), 'pair')}, "
        f"{train.source.tokens:,} source and {train.target.tokens:,} target tokens, "
        f"vocabulary {len(dataset.target.vocab) if dataset.joined else sizes}"
    )


def describe_checkpoints(model: nn.Module, options: TrainingOptions) -> str:
    """Describe the disk space that checkpoints need, and the free space."""
    checkpoints = options.checkpoints
    kept = checkpoints.keep_last + checkpoints.keep_best + (checkpoints.save_epochs is not None)
    size = checkpoint_bytes(model, averaged=options.optimizer.keeps_average)
    need = f"about {format_bytes(size)} each, up to {kept} of them in {checkpoints.save_dir}"
    try:
        free = shutil.disk_usage(existing_part(checkpoints.save_dir)).free
    except OSError:  # some FUSE file systems do not report it
        return need
    there = len(list_checkpoints(checkpoints.save_dir))
    shortage = "" if free > (kept + 1 - there) * size else ": not enough for all of them"
    return f"{need} ({format_bytes(free)} free){shortage}"


def idle_devices(micro_batches: int, devices: int, packed: bool) -> str | None:
    """Return a warning if updates have too few micro-batches to keep all devices busy, else None. If `packed`,
    micro-batches have about equal sizes, so one for each device is enough."""
    enough = devices if packed else 2 * devices
    if devices == 1 or micro_batches >= enough:
        return None
    return (
        f"an update has {counted(micro_batches, 'micro-batch', 'micro-batches')} for {devices} devices, which wait for "
        "each other: lower --max-tokens, or raise --batch-tokens with a learning rate to match, until it has "
        f"{counted(enough, 'micro-batch', 'micro-batches')} or more"
    )


def describe_dry_run(window: Window, minutes_left: float) -> str:
    """Describe the duration of one update and of the run."""
    averages = window.averages()
    return (
        f"dry run: an update of {window.target_tokens} target tokens takes {window.seconds:.2f} s "
        f"({averages['tokens_per_second']} tokens per second, padding {averages['padding']:.1%}), "
        f"the run about {duration(minutes_left)} without its validations; nothing was written"
    )


def next_command(folder: Path, checkpoints: Sequence[int]) -> str:
    """Suggest the next command after training: average the `checkpoints` (updates) in the second half of the run."""
    count = min(_CHECKPOINTS_TO_AVERAGE, sum(update >= checkpoints[-1] / 2 for update in checkpoints))
    if count > 1:
        return f"nmt-average {shlex.quote(str(folder))} --last {count} --output averaged.pt"
    return translate_command(folder / LAST)


def translate_command(checkpoint: Path) -> str:
    """Return the command that translates a file with a checkpoint."""
    return f"nmt-generate --checkpoint {shlex.quote(str(checkpoint))} --input FILE --output FILE"


class Pace:
    """Estimates the time left from the target tokens per second since the start."""

    def __init__(self, tokens_per_epoch: float) -> None:
        """`tokens_per_epoch` and `tokens` (since the start) count stored target tokens, not sampled subwords."""
        self.began = time.monotonic()
        self.tokens_per_epoch, self.tokens = tokens_per_epoch, 0

    def minutes_left(self, state: RunState, stop: StopConfig, updates_per_epoch: int) -> float:
        """Estimate the minutes until the first limit of `stop` except --patience; 0 before the first update.
        Validations and saves since the start count as part of the updates."""
        if not self.tokens:
            return 0.0
        minutes_a_token = (time.monotonic() - self.began) / 60 / self.tokens
        minutes_an_update = minutes_a_token * self.tokens_per_epoch / updates_per_epoch
        left = [(stop.max_updates - state.update) * minutes_an_update]
        if stop.max_epochs is not None:
            updates = (stop.max_epochs - state.epoch + 1) * updates_per_epoch - state.updates_in_epoch
            left.append(updates * minutes_an_update)
        if stop.max_minutes is not None:
            left.append(stop.max_minutes - state.minutes)
        return max(0.0, min(left))


def duration(minutes: float) -> str:
    """Format a duration in its two largest units, such as 3 h 20 min."""
    seconds = round(minutes * 60)
    for size, unit, fraction, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // fraction} {smaller}"
    return f"{seconds} s"


def peak_memory(device: torch.device) -> float:
    """Return the peak memory in GiB, of torch's tensors on a GPU, otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of getrusage
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
