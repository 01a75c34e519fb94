"""Updates of nmtkit's training on random sentences with the lengths of news."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from gpu.lengths import pair_lengths
from gpu.measuring import Measurement, measure
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import START, BatchSampler
from nmtkit.data.mixture import MicroBatch
from nmtkit.data.packing import MicroBatchTensors, Share, SideLengths, make_packed_batch, pack_micro_batches
from nmtkit.machine.host_copy import HostCopy
from nmtkit.machine.precision import resolve_device, resolve_precision
from nmtkit.model import packed_attention as packing
from nmtkit.model import transformer
from nmtkit.model.architectures import make_model
from nmtkit.model.config import TransformerConfig
from nmtkit.text.vocabulary import SPECIALS
from nmtkit.training import loss
from nmtkit.training.capacity import largest_update
from nmtkit.training.compiling import compile_model, use_private_cache
from nmtkit.training.config import BatchConfig, OptimizerConfig
from nmtkit.training.cost import peak_flops, training_flops
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.optim import Optimizers, make_optimizer, take_step
from nmtkit.training.ranks import Ranks

SEED = 1
SMOOTHING = 0.1
LEARNING_RATE = 1e-4
PROFILED = 3  # updates
_PAIRS = 100_000


@dataclass(frozen=True)
class TrainingSetting:
    """What is trained, and how. The defaults are those of nmt-train on a GPU."""

    model: TransformerConfig
    vocabulary: int  # pieces, shared by both sides
    batch_tokens: int  # target tokens of an update
    updates: int  # in a timed run
    repeats: int  # timed runs
    device: str
    precision: str
    compiled: bool = False  # as with --compile
    compiler: str = "inductor"  # torch's backend
    packing: bool = True  # sentences of all lengths in a micro-batch, without padding
    small_tiles: bool = True  # nmtkit's choice of a kernel for packed attention; otherwise `varlen_attn`
    cudnn_attention: bool = False  # allow torch to choose it
    exact_sums: bool = True  # of split products in bf16
    fused_loss: bool = True
    fused_adam: bool = True
    half_activations: bool = True  # between sub-layers, if products are in bf16
    runs_ahead: bool = True  # the host prepares an update while the GPU computes the one before


class Update(NamedTuple):
    """The micro-batches of an update."""

    share: Share
    tokens: int  # target tokens
    flops: int


def make_updates(setting: TrainingSetting) -> list[Update]:
    """The updates of a timed run, in pinned memory if there is a GPU."""
    random = np.random.default_rng(SEED)
    source, target = pair_lengths(random, _PAIRS)
    batches = BatchConfig(batch_tokens=setting.batch_tokens, packing="on" if setting.packing else "off")
    batches = replace(batches, max_tokens=largest_update(int(source.sum()), int(target.sum()), batches))
    sampler = BatchSampler(source, target, setting.batch_tokens, batches.planned_tokens, SEED)
    updates = []
    for update in islice(chain.from_iterable(sampler.plans(START)), setting.updates):
        rows = np.concatenate(update.micro_batches)
        micro_batches = [MicroBatch(0, 1, pairs) for pairs in update.micro_batches]
        if setting.packing:
            lengths_of = partial(_lengths_of, source, target)
            micro_batches = pack_micro_batches(micro_batches, lengths_of, batches.max_tokens)
        make = make_packed_batch if setting.packing else make_batch
        tensors = [
            [_random_batch(random, setting.vocabulary, make, *_lengths_of(source, target, each))]
            for each in micro_batches
        ]
        flops = training_flops(setting.model, setting.vocabulary, source[rows], target[rows])
        updates.append(Update(list(enumerate(tensors)), int(target[rows].sum()), flops))
    return updates


def _lengths_of(source: SideLengths, target: SideLengths, micro_batch: MicroBatch) -> tuple[SideLengths, SideLengths]:
    return source[micro_batch.pairs], target[micro_batch.pairs]


def _random_batch(
    random: np.random.Generator,
    vocabulary: int,
    make: Callable[..., MicroBatchTensors],
    source: SideLengths,
    target: SideLengths,
) -> MicroBatchTensors:
    ids = [random.integers(len(SPECIALS), vocabulary, lengths.sum()) for lengths in (source, target)]
    batch = make(ids[0], source, ids[1], target)
    return batch.pin_memory() if torch.cuda.is_available() else batch


class Training:
    """A model with its optimizer; an update is computed as nmt-train does it."""

    def __init__(self, setting: TrainingSetting, device: torch.device) -> None:
        use_private_cache()
        torch.manual_seed(SEED)
        self.setting = setting
        self.model = make_model(setting.model, setting.vocabulary, setting.vocabulary).to(device)
        precision = resolve_precision(setting.precision, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
        ranks = Ranks(device)
        self.gradient = UpdateGradient(MicroBatchLoss(self.model, SMOOTHING), ranks, precision, self.scaler, SEED)
        if setting.compiled:
            compile_model(self.model, device)
        self.optimizer: Optimizers
        if setting.fused_adam:
            self.optimizer = make_optimizer(self.model, OptimizerConfig())
        else:
            self.optimizer = Optimizers(torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, foreach=True))

    def run(self, updates: list[Update]) -> int:
        """Compute the updates, and return the number of target tokens. The GPU may not have finished."""
        waiting: HostCopy | None = None
        for number, update in enumerate(updates, 1):
            losses, _ = self.gradient.compute(number, update.share, update.tokens, votes=())
            numbers = HostCopy(torch.cat((losses, self.step().double().unsqueeze(0))))
            if not self.setting.runs_ahead:
                numbers.read()
            elif waiting is not None:
                waiting.read()
            waiting = numbers
        if self.gradient.times_out_of_memory:
            raise MemoryError(f"out of memory: retried with {self.gradient.memory_limit or 'freed caches'}")
        return sum(update.tokens for update in updates)

    def step(self) -> Tensor:
        """Take a step of Adam, and return the norm of the gradient."""
        if self.setting.fused_adam:
            return take_step(self.model, self.optimizer, self.scaler, LEARNING_RATE)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        for part in self.optimizer.parts:
            part.step()
        return norm


@contextlib.contextmanager
def _changed(setting: TrainingSetting) -> Iterator[None]:
    """Change torch's settings, and disable the optimizations that the setting does not have."""
    torch.backends.cuda.enable_cudnn_sdp(setting.cudnn_attention)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not setting.exact_sums
    with contextlib.ExitStack() as stack:
        compile_with = partial(torch.compile, backend=setting.compiler)
        stack.enter_context(mock.patch.object(torch, "compile", compile_with))
        if not setting.small_tiles:
            stack.enter_context(mock.patch.object(packing, "attend_sentences", packing._varlen_attn()))
        if not setting.fused_loss:
            stack.enter_context(mock.patch.object(loss, "_kernel_for", return_value=None))
        if not setting.half_activations:
            stack.enter_context(mock.patch.object(transformer, "as_activations", lambda x: x))
        yield


def measure_training(setting: TrainingSetting) -> Measurement:
    """Target tokens a second and utilization of nmtkit's training."""
    device = resolve_device(setting.device)
    updates = make_updates(setting)
    with _changed(setting):
        training = Training(setting, device)
        measurement = measure(
            lambda: training.run(updates), lambda: training.run(updates[:PROFILED]), setting.repeats, device
        )
    peak = None
    if device.type == "cuda":
        half = resolve_precision(setting.precision, device) != torch.float32
        peak = peak_flops(torch.cuda.get_device_name(device), half)
    if not peak:
        return measurement
    flops_per_token = sum(update.flops for update in updates) / sum(update.tokens for update in updates)
    return replace(measurement, utilization=flops_per_token * measurement.rate / peak)
