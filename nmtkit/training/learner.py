"""The state that an optimizer step changes: weights, optimizer state, loss scale and moving average."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.errors import UserError
from nmtkit.machine.precision import autocast, resolve_precision
from nmtkit.model.config import TransformerConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.training.compiling import compile_model, use_private_cache
from nmtkit.training.config import TrainingOptions
from nmtkit.training.construction import build_model
from nmtkit.training.ema import MovingAverage, ScheduleFreeAverage
from nmtkit.training.fine_tuning import freeze
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.optim import make_optimizer, take_step
from nmtkit.training.ranks import Ranks


def _check_recurrent(precision: torch.dtype) -> None:
    """Raise UserError if torch cannot train an LSTM in this precision on this CPU."""
    if precision == torch.float16:
        raise UserError("--precision fp16: CPUs cannot train recurrent models in fp16: use bf16 or fp32")
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if precision == torch.bfloat16 and has_onednn and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UserError("--precision bf16: this CPU cannot train recurrent models in bf16: use fp32")


class Learner:
    """A model, its optimizer, the loss scaler (fp16 only), and the moving average of the weights (--ema only).

    The run's seed determines the initial weights. Raises UserError if the options do not fit model, dataset or machine.
    """

    def __init__(self, dataset: Dataset, languages: tuple[str, str], options: TrainingOptions, ranks: Ranks) -> None:
        """`dataset` provides the vocabularies; `languages` are source and target language, for checkpoints."""
        self.dataset, self.languages, self.device = dataset, languages, ranks.device
        self.precision = resolve_precision(options.device.precision, ranks.device)
        if self.device.type == "cpu" and isinstance(options.model, RecurrentConfig):
            _check_recurrent(self.precision)
        self.clip_norm = options.optimizer.clip_norm
        use_private_cache()
        torch.manual_seed(options.batches.seed)
        self.model = build_model(dataset, options, ranks.device)
        if options.compute.compile:
            compile_model(self.model, ranks.device)
        freeze(self.model, options.fine_tuning.freeze)
        optimizer = options.optimizer
        guidance = optimizer.guided_alignment_weight if optimizer.guided_alignment else 0.0
        self.loss = MicroBatchLoss(self.model, optimizer.label_smoothing, optimizer.r_drop, guidance)
        self.taught: dict[str, Any] = {}  #: search settings: alignments are read from the layer that learns them
        if guidance and isinstance(options.model, TransformerConfig):
            self.taught = {"alignment_layer": options.model.decoder_layers}
        self.lora = options.lora if options.lora.lora_rank else None
        self.optimizer = make_optimizer(self.model, options.optimizer)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=self.precision == torch.float16)
        ema = options.optimizer.ema
        self.average = MovingAverage(self.model, ema) if ema else None
        self.search: dict[str, Any] = {}  #: of the checkpoint that the weights began with
        if options.optimizer.optimizer == "schedule-free":
            self.average = ScheduleFreeAverage(self.model, self.optimizer.parts[0])

    def step(self, update: int, learning_rate: float) -> Tensor:
        """Take one optimizer step, unless the gradient is not finite; return its norm, a scalar on the device."""
        norm = take_step(self.model, self.optimizer, self.scaler, learning_rate, self.clip_norm)
        if self.average is not None:
            self.average.step(update, norm.isfinite())
        return norm

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Compute in the run's precision within this context, using the averaged weights if there are any."""
        averaged = self.average.in_model() if self.average else contextlib.nullcontext()
        with autocast(self.device, self.precision), averaged:
            yield

    def checkpoint(self, progress: dict[str, Any], optimizer: dict[str, Tensor]) -> Checkpoint:
        """Create a checkpoint of the current state, with `progress` and the `optimizer` tensors (…) by name."""
        return Checkpoint(
            model_config=self.model.config,
            weights=as_arrays(collect_weights(self.model)),
            source_language=self.languages[0],
            target_language=self.languages[1],
            source=self.dataset.source,
            target=self.dataset.target,
            progress=progress,
            search=self.search | self.taught,
            optimizer=as_arrays(optimizer),
            ema=as_arrays(self.average.averages) if self.average else None,
            lora=self.lora,
        )
