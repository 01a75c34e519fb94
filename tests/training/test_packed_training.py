"""Training with packed sentences: the same loss and gradients as with padding, in every variant of the Transformer."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, Run
from fake_gpu import fake_gpu
from small_transformers import W, make, variants
from torch import Tensor
from torch.testing import assert_close
from training_runs import tensors

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.batch import make_batch
from nmtkit.data.packing import MicroBatchTensors, PackedBatch, make_packed_batch
from nmtkit.errors import UserError
from nmtkit.model import packed_attention as packing
from nmtkit.model.config import DeviceConfig, TransformerConfig
from nmtkit.model.packed_attention import PackedSide, Packing, Padding, attend_packed, kernel_for, pack_sides
from nmtkit.model.recurrent_config import RecurrentConfig
from nmtkit.text.vocabulary import EOS
from nmtkit.training.capacity import with_batches_of_device
from nmtkit.training.config import BatchConfig, CheckpointConfig, ComputeConfig, OptimizerConfig, TrainingOptions
from nmtkit.training.loss import MicroBatchLoss
from nmtkit.training.ranks import Ranks
from nmtkit.training.trainer import Trainer
from nmtkit.training.training_data import TrainingData

Train = Callable[..., Any]
CPU = torch.device("cpu")
HAS_KERNEL = find_spec("torch.nn.attention.varlen") is not None
LENGTHS = (3, 9), (1, 2), (25, 1), (6, 30)  # of sources and targets
TOKENS = sum(target for _, target in LENGTHS)
SMALL = ("--packing", "on", "--dropout", 0.3, "--max-tokens", 300, "--batch-tokens", 1000)


def both_batches(*lengths: tuple[int, int]) -> tuple[MicroBatchTensors, PackedBatch]:
    """The same random sentence pairs of these lengths, padded and packed."""
    random = np.random.default_rng(7)
    sides: list[Any] = []
    for numbers in zip(*lengths, strict=True):
        ids = [[*random.integers(EOS + 1, W, number - 1), EOS] for number in numbers]
        sides += [np.concatenate(ids), np.array(numbers, np.int32)]
    return make_batch(*sides), make_packed_batch(*sides)


def packings_for_padding(batch: PackedBatch) -> tuple[Packing, Packing]:
    """The packings of source and target for attention without the kernel."""
    source_filler, target_filler = len(batch.src) - batch.source_tokens, len(batch.tgt_in) - batch.target_tokens
    return pack_sides(
        PackedSide(batch.source_lengths, batch.source_tokens, batch.longest[0], source_filler),
        PackedSide(batch.target_lengths, batch.target_tokens, batch.longest[1], target_filler),
        kernel=None,
    )


def loss_and_gradients(model: torch.nn.Module, batch: MicroBatchTensors) -> dict[str, Tensor]:
    model.zero_grad()
    loss, nll = MicroBatchLoss(model, 0.1)(batch)  # type: ignore[arg-type]
    loss, nll = loss / TOKENS, nll / TOKENS
    torch.autograd.backward(loss)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "nll": nll, **gradients}


@variants
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_sentences_have_the_loss_and_gradients_of_padded_ones(
    changes: dict[str, Any], dtype: torch.dtype
) -> None:
    model = make(**changes).to(dtype)
    padded, packed = (loss_and_gradients(model, batch) for batch in both_batches(*LENGTHS))
    assert packed.keys() == padded.keys()
    for name, value in padded.items():
        assert_close(packed[name], value, rtol=1e-5, atol=1e-6 if dtype == torch.float32 else 1e-12, msg=name)


@pytest.mark.parametrize(
    "lengths",
    [[(240, 240), *[(4, 5)] * 400], [(1, 256), (256, 1), *[(2, 3)] * 200]],
    ids=["one-long-among-short", "one-long-side"],
)
def test_a_side_is_padded_for_attention_to_at_most_twice_the_tokens_of_both(lengths: list[tuple[int, int]]) -> None:
    _, batch = both_batches(*lengths)
    for side in packings_for_padding(batch):
        padding = side.attention
        assert isinstance(padding, Padding)
        assert sum(mask.numel() for mask in padding.masks) <= 2 * batch.padded_tokens


def per_sentence_kernel(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, longest: int, longest_key: int, **options: Any
) -> Tensor:
    """Compute the results of torch's kernel one sentence at a time; check its limits on lengths."""
    left, right = options["window_size"]
    rows = []
    assert int(starts.diff().max()) <= longest
    assert int(key_starts.diff().max()) <= longest_key
    for begin, end, key_begin, key_end in zip(starts, starts[1:], key_starts, key_starts[1:], strict=False):
        scores = torch.einsum("qhk,shk->hqs", q[begin:end], k[key_begin:key_end]) * q.size(-1) ** -0.5
        offset = torch.arange(scores.size(2)) - torch.arange(scores.size(1)).unsqueeze(1)
        allowed = torch.ones_like(offset, dtype=torch.bool)
        if left >= 0:
            allowed &= offset >= -left
        if right >= 0:
            allowed &= offset <= right
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        rows.append(torch.einsum("hqs,shv->qhv", weights, v[key_begin:key_end]))
    return torch.cat(rows)


@pytest.mark.parametrize("changes", [{}, {"attention_window": 2}, {"norm": "pre", "positions": "learned"}])
def test_the_kernel_is_called_with_arguments_that_give_the_results_of_padding(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(**changes)
    padded, packed = both_batches(*LENGTHS)
    expected = loss_and_gradients(model, padded)
    monkeypatch.setattr("nmtkit.training.loss.kernel_for", lambda *facts: per_sentence_kernel)
    for name, value in loss_and_gradients(model, packed).items():
        assert_close(value, expected[name], msg=name)


@pytest.mark.parametrize(
    "own", [True, pytest.param(False, marks=pytest.mark.skipif(not HAS_KERNEL, reason="torch < 2.10"))]
)
def test_the_kernels_of_this_torch_accept_the_arguments(own: bool) -> None:
    kernel = packing.attend_sentences if own else import_module("torch.nn.attention.varlen").varlen_attn
    with torch.device("meta"):
        x = torch.zeros(128, 2, 8, dtype=torch.bfloat16)
        starts, positions = torch.zeros(4, dtype=torch.int32), torch.zeros(128, dtype=torch.int64)
        side = Packing(starts, positions, 50, 40, kernel)
        assert attend_packed(kernel, x, x, x, side, side, (-1, 0)).shape == (128, 16)


def test_packing_is_chosen_only_where_the_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, config = torch.device("cuda"), TransformerConfig()
    monkeypatch.setattr(
        packing, "_kernel_on", lambda device, precision, windowed: len if precision == torch.bfloat16 else None
    )
    assert kernel_for(config, torch.bfloat16, gpu)
    assert not kernel_for(config, torch.bfloat16, CPU)
    assert not kernel_for(config, torch.float32, gpu)
    for other in ({"attention_dropout": 0.1}, {"d_k": 60, "d_v": 60}, {"d_k": 32}, {"heads": 1}):
        assert not kernel_for(replace(config, **other), torch.bfloat16, gpu), other


def test_a_gpu_without_a_usable_kernel_trains_with_padding(
    run_here: Run, datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "nmt-train", datasets["joined"], "--save-dir", tmp_path, *TINY, "--max-updates", 1, "--device", "cuda"
    with fake_gpu(monkeypatch, bf16=True):  # on which the kernel fails
        done = run_here(*command, "--precision", "bf16")
    packing._kernel_on.cache_clear()
    assert b"sentences are not packed" in done.stderr
    batches = load_checkpoint(tmp_path / "checkpoint_last.pt").progress["options"]["batches"]
    assert batches["packing"] == "off"


def packed_trainer(dataset: Path, folder: Path, **batches: Any) -> Trainer:
    options = TrainingOptions(
        model=TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2, dropout=0.0),
        batches=replace(BatchConfig(batch_tokens=1000, packing="on"), **batches),
        compute=ComputeConfig(num_workers=0),
        optimizer=OptimizerConfig(warmup_updates=10),
        checkpoints=CheckpointConfig(save_dir=folder),
        device=DeviceConfig(precision="fp32"),
    )
    return Trainer(TrainingData.open([dataset], False, options.batches), options, Ranks(CPU))


def test_packing_changes_neither_the_sentences_of_an_update_nor_its_gradient(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    trainers = [
        packed_trainer(datasets["joined"], tmp_path, packing=way, max_tokens=tokens)
        for way, tokens in (("off", 300), ("on", 300))
    ]
    works = [next(trainer._begin()) for trainer in trainers]
    padded, packed = (np.concatenate([each.pairs for each in work.update.micro_batches]) for work in works)
    assert np.array_equal(padded, packed)
    gradients: list[list[Tensor]] = []
    for trainer, work in zip(trainers, works, strict=True):
        trainer.gradient.compute(1, work.share(), sum(work.target_tokens), (), work.datasets)
        gradients.append([p.grad for p in trainer.learner.model.parameters() if p.grad is not None])
    assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert works[1].padded_tokens < works[1].tokens + 256 * len(works[1].update.micro_batches)


def test_the_sentences_of_a_packed_update_do_not_depend_on_a_large_max_tokens(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    updates = []
    for max_tokens in (5000, 50_000):
        trainer = packed_trainer(datasets["joined"], tmp_path, batch_tokens=6000, max_tokens=max_tokens)
        updates.append(next(trainer._begin()).update.micro_batches)
    pairs = [np.concatenate([each.pairs for each in update]) for update in updates]
    assert all(np.array_equal(other, pairs[0]) for other in pairs)
    assert len(updates[1]) == 1


def test_a_resumed_packed_run_ends_with_the_weights_of_an_uninterrupted_one(train: Train, tmp_path: Path) -> None:
    sampled = (*SMALL, "--subword-sampling", 0.3)
    train(tmp_path / "whole", "--max-updates", 4, *sampled)
    train(tmp_path / "parts", "--max-updates", 2, *sampled)
    train(tmp_path / "parts", "--max-updates", 4, *sampled[2:])  # stays packed without the option
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(np.array_equal(tensor, parts[name]) for name, tensor in whole.items())
    assert load_checkpoint(tmp_path / "parts" / "checkpoint_last.pt").progress["options"]["batches"]["packing"] == "on"


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_that_exceeds_a_limit_is_cut_into_parts_with_the_same_gradient(packed: bool) -> None:
    model = make()
    padded, one = both_batches((3, 9), (1, 2), (25, 1), (6, 30), (8, 8))
    batch: MicroBatchTensors = one if packed else padded
    parts: list[MicroBatchTensors] = [*batch.parts_within(20)]
    assert 1 < len(parts) < 5
    assert all(
        max(part.tgt_out.numel(), part.src.numel()) <= (128 if packed else 20) or part.sentences == 1 for part in parts
    )
    assert sum(part.sentences for part in parts) == 5
    sums = [loss_and_gradients(model, part) for part in parts]
    for name, value in loss_and_gradients(model, batch).items():
        assert_close(torch.stack([each[name] for each in sums]).sum(0), value, msg=name)


def test_packing_is_refused_for_architectures_without_it(datasets: dict[str, Path], tmp_path: Path) -> None:
    options = TrainingOptions(
        model=RecurrentConfig(), batches=BatchConfig(packing="on"), checkpoints=CheckpointConfig(save_dir=tmp_path)
    )
    data = TrainingData.open([datasets["joined"]], False, options.batches)
    with pytest.raises(UserError, match="--packing on supports only Transformers"):
        with_batches_of_device(data, options, Ranks(CPU))
