"""What learns: the model, and what goes along with its weights from step to step."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint, collect_weights
from nmtkit.data.corpus import Dataset
from nmtkit.errors import RunError
from nmtkit.model.memory import is_out_of_memory
from nmtkit.model.precision import resolve_precision
from nmtkit.model.transformer import Transformer
from nmtkit.training.compiling import compile_layers
from nmtkit.training.config import TrainingOptions
from nmtkit.training.ema import MovingAverage
from nmtkit.training.fine_tuning import freeze
from nmtkit.training.gradient import autocast
from nmtkit.training.optim import make_optimizer, optimizer_tensors, take_step
from nmtkit.training.ranks import Ranks
from nmtkit.training.summary import describe_lack_of_memory


def build_model(dataset: Dataset, options: TrainingOptions, device: torch.device) -> Transformer:
    """A model with weights drawn by torch's generator.

    Raises UserError where its options do not fit the vocabularies, RunError where it does not fit into memory.
    """
    with memory_for_model(dataset, options):
        model = _make_model(dataset, options).to(device)
    model.activation_checkpointing = options.compute.activation_checkpointing
    return model


@contextlib.contextmanager
def memory_for_model(dataset: Dataset, options: TrainingOptions) -> Iterator[None]:
    """RunError, with the size of the model, where memory runs out within, and smaller batches would not help."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        with torch.device("meta"):  # all sizes, and no memory
            model = _make_model(dataset, options)
        raise RunError(describe_lack_of_memory(model, options)) from error


def _make_model(dataset: Dataset, options: TrainingOptions) -> Transformer:
    config = options.model.for_vocabularies(dataset.joined)
    return Transformer(config, len(dataset.source.vocab), len(dataset.target.vocab))


class Learner:
    """A model, its optimizer, the scale of its loss (with fp16), and the moving average of its weights (with --ema).

    The weights are drawn by the run's seed. Raises UserError for options that do not fit model, dataset or machine.
    """

    def __init__(self, dataset: Dataset, options: TrainingOptions, ranks: Ranks) -> None:
        self.dataset, self.device = dataset, ranks.device
        self.precision = resolve_precision(options.device.precision, ranks.device)
        self.clip_norm = options.optimizer.clip_norm
        torch.manual_seed(options.batches.seed)
        self.model = build_model(dataset, options, ranks.device)
        if options.compute.compile:
            compile_layers(self.model, ranks.device)
        freeze(self.model, options.fine_tuning.freeze)
        sharded = options.distributed.shard_optimizer and ranks.size > 1
        self.optimizer = make_optimizer(self.model, options.optimizer, sharded)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=self.precision == torch.float16)
        ema = options.optimizer.ema
        self.average = MovingAverage(self.model, ema) if ema else None

    def step(self, update: int, learning_rate: float) -> float:
        """Change the weights by their gradient, and return its norm. One that is not finite changes nothing."""
        norm = take_step(self.model, self.optimizer, self.scaler, learning_rate, self.clip_norm)
        if self.average is not None and math.isfinite(norm):
            self.average.step(update)
        return norm

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Within it the model is as it is to be validated: in the run's precision, with averages if it has any."""
        averaged = self.average.in_model() if self.average else contextlib.nullcontext()
        with autocast(self.device, self.precision), averaged:
            yield

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """For a checkpoint. Collective where the optimizer is sharded; then only the main process gets them."""
        return optimizer_tensors(self.optimizer, self.model)

    def checkpoint(self, progress: dict[str, Any], optimizer: dict[str, Tensor]) -> Checkpoint:
        """What it has come to, with how far the run is."""
        return Checkpoint(
            model_config=self.model.config,
            weights=collect_weights(self.model),
            source_language=self.dataset.source_language,
            target_language=self.dataset.target_language,
            source=self.dataset.source,
            target=self.dataset.target,
            progress=progress,
            optimizer=optimizer,
            ema=self.average.averages if self.average else None,
        )
