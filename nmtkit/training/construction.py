"""Creates the model of a run. If memory runs out, the error says how much training needs."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from nmtkit.data.corpus import Dataset
from nmtkit.errors import RunError
from nmtkit.machine.memory import is_out_of_memory, out_of_memory
from nmtkit.model.architectures import make_model
from nmtkit.model.lora import add_low_rank
from nmtkit.model.translation_model import TranslationModel
from nmtkit.training.config import TrainingOptions
from nmtkit.wording import format_bytes, in_millions


def build_model(dataset: Dataset, options: TrainingOptions, device: torch.device) -> TranslationModel:
    """Create the run's model on `device`, with low-rank additions for --lora-rank, and weights from torch's generator.
    Raises UserError if the options do not fit the vocabularies, and RunError if memory runs out."""
    with memory_for_model(dataset, options, device):
        model = _make_model(dataset, options).to(device)
    model.activation_checkpointing = options.compute.activation_checkpointing
    return model


@contextlib.contextmanager
def memory_for_model(dataset: Dataset, options: TrainingOptions, device: torch.device) -> Iterator[None]:
    """Raise RunError with the model's size if memory runs out in this context, where smaller batches cannot help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        with torch.device("meta"):  # shapes without memory
            model = _make_model(dataset, options)
        numbers = sum(parameter.numel() for parameter in model.parameters())
        size = 4 * numbers + checkpoint_bytes(model, averaged=options.optimizer.keeps_average)
        raise RunError(
            f"{out_of_memory(device)}: the model's {in_millions(numbers)} parameters, with their gradients and Adam's "
            f"moments, take about {format_bytes(size)}: lower --d-model, --d-ff or the number of layers"
        ) from error


def checkpoint_bytes(model: nn.Module, averaged: bool) -> int:
    """Compute the bytes of a checkpoint's tensors: weights, their averages if `averaged`, and Adam's moments."""
    sets = [(1 + averaged + 2 * parameter.requires_grad, parameter.numel()) for parameter in model.parameters()]
    return 4 * sum(count * numbers for count, numbers in sets)


def _make_model(dataset: Dataset, options: TrainingOptions) -> TranslationModel:
    config = options.model.for_vocabularies(dataset.joined)
    model = make_model(config, len(dataset.source.vocab), len(dataset.target.vocab))
    if options.lora.lora_rank:
        add_low_rank(model, options.lora)
    return model
