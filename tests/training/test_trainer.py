"""The update: what it divides by, how it is cut, and that nothing but its number decides about it."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import CPU, GPU, fake_gpu
from reference_loss import smoothed_loss
from torch import Tensor
from torch.testing import assert_close

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.batch import Batch, collate
from nmtkit.data.batching import START, Update
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.search import search
from nmtkit.inference.arrays import Ints
from nmtkit.model.config import DeviceConfig, ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.storage.run_files import checkpoint_path
from nmtkit.text.vocabulary import PAD
from nmtkit.training.config import (
    BatchConfig,
    CheckpointConfig,
    ComputeConfig,
    OptimizerConfig,
    StopConfig,
    TrainingOptions,
    ValidationConfig,
)
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.trainer import Trainer
from nmtkit.training.training_data import TrainingData

MODEL = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0)


@pytest.fixture
def options(tmp_path: Path) -> TrainingOptions:
    return TrainingOptions(
        model=MODEL,
        batches=BatchConfig(batch_tokens=10_000, max_tokens=10_000),
        compute=ComputeConfig(num_workers=0),
        optimizer=OptimizerConfig(warmup_updates=10),
        stop=StopConfig(max_updates=3),
        checkpoints=CheckpointConfig(save_dir=tmp_path / "run"),
        device=DeviceConfig(device="cpu", precision="fp32"),
    )


def make(dataset: Path, options: TrainingOptions, device: torch.device = CPU, **batches: Any) -> Trainer:
    options = replace(options, batches=replace(options.batches, **batches))
    return Trainer(TrainingData.open([dataset], False, options.batches), options, Ranks(device))


def gradients(trainer: Trainer, update: Update, number: int = 1) -> dict[str, Tensor]:
    """The gradients of an update, and its loss as `trainer.loss`."""
    share = [(i, [collate(trainer.data.splits[0], indices)]) for i, indices in enumerate(update.micro_batches)]
    tokens = sum(batch.target_tokens for _, (batch,) in share)
    gradient = trainer._gradient()
    (loss, _), _ = gradient.compute(number, share, tokens, votes=())
    trainer.window.loss, trainer.window.target_tokens = float(loss), tokens
    seen = {name: p.grad for name, p in trainer.learner.model.named_parameters() if p.grad is not None}
    assert len(seen) == len(list(trainer.learner.model.parameters()))
    return seen


def halves(update: Update) -> Update:
    """The same sentences in micro-batches of a few sentences."""
    indices = np.concatenate(update.micro_batches)
    return replace(update, micro_batches=np.array_split(indices, 7))


def test_splitting_an_update_into_more_micro_batches_gives_the_same_gradient(
    datasets: dict[str, Path], options: TrainingOptions
) -> None:
    trainer, other = make(datasets["joined"], options), make(datasets["joined"], options)
    (update,) = next(trainer.loader.mixture.samplers[0].plans(START))
    whole, parts = gradients(trainer, update), gradients(other, halves(update))
    for name, gradient in whole.items():
        assert_close(parts[name], gradient, rtol=1e-3, atol=1e-6)
    assert other.window.loss == pytest.approx(trainer.window.loss, rel=1e-5)


def test_the_loss_is_divided_by_the_real_target_tokens_of_the_update(
    datasets: dict[str, Path], options: TrainingOptions
) -> None:
    trainer, other = make(datasets["joined"], options), make(datasets["joined"], options)
    (update,) = next(trainer.loader.mixture.samplers[0].plans(START))
    batch = collate(trainer.data.splits[0], np.concatenate(update.micro_batches))
    # sentences of 3 tokens beside some of 30
    assert batch.padded_tokens > 1.3 * (batch.source_tokens + batch.target_tokens)
    logits = other.learner.model(batch.src, batch.source_lengths, batch.tgt_in)
    real = batch.tgt_out != PAD
    loss = smoothed_loss(logits[real], batch.tgt_out[real], 0.1) / real.sum()
    torch.autograd.backward(loss)
    actual = gradients(trainer, halves(update))
    for name, parameter in other.learner.model.named_parameters():
        assert parameter.grad is not None
        assert_close(actual[name], parameter.grad, rtol=1e-3, atol=1e-6)
    assert trainer.window.loss / trainer.window.target_tokens == pytest.approx(loss.item(), rel=1e-5)
    assert trainer.window.target_tokens == batch.target_tokens


WITH_DROPOUT = [
    replace(MODEL, dropout=0.3, attention_dropout=0.2, activation_dropout=0.1),
    RecurrentConfig(encoder_layers=2, decoder_layers=2, d_model=8, dropout=0.3),
    ConvolutionalConfig(encoder_convolutions="1x8", decoder_convolutions="1x8", d_model=8, d_bottleneck=8, dropout=0.3),
]


@pytest.mark.parametrize("model", WITH_DROPOUT, ids=lambda config: config.arch)
@pytest.mark.parametrize("sizes", [(10_000, 10_000), (300, 200)])
def test_dropout_masks_depend_on_the_seed_and_the_update_and_not_on_earlier_draws(
    sizes: tuple[int, int], model: ModelConfig, datasets: dict[str, Path], options: TrainingOptions
) -> None:
    options = replace(options, model=model)
    batches = {"batch_tokens": sizes[0], "max_tokens": sizes[1]}

    def run(seed: int, number: int, spoil: bool) -> dict[str, Tensor]:
        trainer = make(datasets["joined"], options, CPU, seed=1, **batches)
        trainer.options = replace(trainer.options, batches=replace(trainer.options.batches, seed=seed))
        if spoil:
            torch.rand(number)  # whatever has been drawn before
        return gradients(trainer, next(trainer.loader.mixture.samplers[0].plans(START))[0], number)

    first = run(1, 5, spoil=False)
    assert all(torch.equal(gradient, first[name]) for name, gradient in run(1, 5, spoil=True).items())
    for seed, number in ((2, 5), (1, 6)):
        assert any(not torch.equal(gradient, first[name]) for name, gradient in run(seed, number, spoil=False).items())


def test_each_micro_batch_and_each_of_its_parts_has_its_own_dropout_masks(
    datasets: dict[str, Path], options: TrainingOptions
) -> None:
    options = replace(options, model=replace(MODEL, dropout=0.3))
    trainer = make(datasets["joined"], options, max_tokens=200)
    batch = collate(trainer.data.splits[0], np.arange(3))

    def embedding_gradient(share: list[tuple[int, list[Batch]]]) -> Tensor:
        gradient = trainer._gradient()
        gradient.compute(1, share, 1, votes=())
        found = trainer.learner.model.output_matrix.grad
        assert found is not None
        return found.clone()

    first, second = embedding_gradient([(0, [batch])]), embedding_gradient([(1, [batch])])
    assert not torch.allclose(first, second, rtol=0.1)
    assert_close(embedding_gradient([(0, [batch]), (1, [batch])]), first + second)
    in_two_parts = embedding_gradient([(0, [batch, batch])])
    assert not torch.allclose(in_two_parts, 2 * first, rtol=0.1)
    assert not torch.allclose(in_two_parts, first + second, rtol=0.1)


def test_gradients_are_clipped_to_the_requested_norm(datasets: dict[str, Path], options: TrainingOptions) -> None:
    trainer = make(datasets["joined"], options)
    clipped = make(datasets["joined"], replace(options, optimizer=replace(options.optimizer, clip_norm=0.01)))
    before, norms = [], []
    for each in (trainer, clipped):
        kept = gradients(each, next(each.loader.mixture.samplers[0].plans(START))[0])
        before.append(each.learner.step(1, learning_rate=0.1).item())
        norms.append(torch.cat([gradient.flatten() for gradient in kept.values()]).norm().item())
    assert norms[0] == pytest.approx(before[0], rel=1e-4)
    assert norms[1] == pytest.approx(0.01, rel=1e-3)
    assert before[1] == pytest.approx(before[0], rel=1e-4)


def test_an_update_with_a_nonfinite_gradient_is_skipped_and_counted(
    datasets: dict[str, Path], options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = UpdateGradient._backward

    def backward(self: UpdateGradient, update: int, *arguments: Any) -> Tensor:
        sums = original(self, update, *arguments)
        if update in (2, 4):
            gradient = next(self.loss.parameters()).grad
            assert gradient is not None
            gradient.fill_(float("inf"))
        return sums

    monkeypatch.setattr(UpdateGradient, "_backward", backward)
    checkpoints = replace(options.checkpoints, save_every=1)
    trainer = make(datasets["joined"], replace(options, checkpoints=checkpoints, stop=StopConfig(max_updates=4)))
    trainer.fit()
    weights = [load_checkpoint(checkpoint_path(checkpoints.save_dir, number)).weights for number in range(1, 5)]
    same = [all(np.array_equal(tensor, now[name]) for name, tensor in last.items()) for last, now in pairwise(weights)]
    assert same == [True, False, True]
    assert (trainer.state.update, trainer.state.skipped, trainer.state.skipped_in_a_row) == (4, 2, 1)


@pytest.mark.parametrize(
    "fail",
    [
        lambda: torch.empty(1 << 60, dtype=torch.uint8),  # what a CPU says of it
        lambda: exec('raise RuntimeError("CUDA driver error: out of memory")'),
    ],
)
def test_every_kind_of_out_of_memory_error_is_handled(
    fail: Callable[[], object], datasets: dict[str, Path], options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, other = make(datasets["joined"], options), make(datasets["joined"], options)
    (update,) = next(trainer.loader.mixture.samplers[0].plans(START))
    whole = gradients(trainer, update)
    forward = MicroBatchLoss.forward

    def limited(self: MicroBatchLoss, batch: Batch) -> tuple[Tensor, Tensor]:
        if len(batch.src) > 100:
            fail()
        return forward(self, batch)

    monkeypatch.setattr(MicroBatchLoss, "forward", limited)
    parts = gradients(other, update)
    for name, gradient in whole.items():
        assert_close(parts[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("failures", "repeated", "learned"), [(1, 1, False), (2, 2, True)])
def test_a_gpu_repeats_an_update_as_it_was_before_it_makes_micro_batches_smaller(
    failures: int,
    repeated: int,
    learned: bool,
    datasets: dict[str, Path],
    options: TrainingOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, left = MicroBatchLoss.forward, failures

    def failing(self: MicroBatchLoss, batch: Batch) -> tuple[Tensor, Tensor]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch)

    monkeypatch.setattr(MicroBatchLoss, "forward", failing)
    with fake_gpu(monkeypatch):
        trainer = make(datasets["joined"], options, device=GPU)
        batch = collate(trainer.data.splits[0], np.arange(20))
        gradient = trainer._gradient()
        gradient.compute(1, [(0, [batch])], batch.target_tokens, votes=())
    assert gradient.times_out_of_memory == repeated
    assert (gradient.memory_limit is not None) == learned


@pytest.mark.parametrize("beam", [1, 3])
def test_validation_translates_no_more_tokens_at_once_than_fit_in_a_micro_batch(
    beam: int, datasets: dict[str, Path], options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measured(model: Any, src: Ints, lengths: Ints, config: SearchConfig, *arguments: Any) -> Any:
        sizes.append(src.size * config.beam)
        return search(model, src, lengths, config, *arguments)

    monkeypatch.setattr("nmtkit.decoding.engine.search", measured)
    options = replace(options, validation=ValidationConfig(valid_bleu=True, valid_beam=beam))
    trainer = make(datasets["joined"], options, max_tokens=600)
    results = trainer.validator.run(trainer.learner.loss, trainer.ranks)
    assert results is not None
    assert len(results.samples) == 5
    assert 200 < max(sizes) <= 600


def test_validation_computes_the_mean_loss_over_all_tokens(datasets: dict[str, Path], options: TrainingOptions) -> None:
    trainer = make(datasets["joined"], options)
    split = trainer.data.first.split("valid")
    batch = collate(split, np.arange(len(split)))
    with torch.no_grad():
        logits = trainer.learner.model.eval()(batch.src, batch.source_lengths, batch.tgt_in)
    real = batch.tgt_out != PAD
    results = trainer.validator.run(trainer.learner.loss, trainer.ranks)
    assert results is not None
    for name, smoothing in (("valid_loss", 0.1), ("valid_nll", 0.0)):
        expected = smoothed_loss(logits[real], batch.tgt_out[real], smoothing) / real.sum()
        assert results.values[name] == pytest.approx(expected.item(), rel=1e-5)
    assert results.values["valid_ppl"] == pytest.approx(np.exp(results.values["valid_nll"]))
    small = make(datasets["joined"], options, max_tokens=100)  # less than the longest sentence
    assert len(small.validator.batches) > 1
    in_parts = small.validator.run(trainer.learner.loss, trainer.ranks)
    assert in_parts is not None
    assert in_parts.values["valid_loss"] == pytest.approx(results.values["valid_loss"])


def test_other_errors_are_not_mistaken_for_lack_of_memory(
    datasets: dict[str, Path], options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(datasets["joined"], options)
    monkeypatch.setattr(UpdateGradient, "_backward", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        gradients(trainer, next(trainer.loader.mixture.samplers[0].plans(START))[0])
