"""--max-tokens auto: what fits into a GPU is found by trial, and a resumed run keeps it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Train
from fake_gpu import GPU, fake_gpu
from training_runs import last

from nmtkit.data.batching import START
from nmtkit.data.mixture import Mixture
from nmtkit.machine import memory
from nmtkit.model.config import TransformerConfig
from nmtkit.training import capacity
from nmtkit.training.config import BatchConfig, CheckpointConfig, TrainingOptions
from nmtkit.training.ranks import Ranks
from nmtkit.training.training_data import TrainingData

SMALL = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
CPU = torch.device("cpu")


@pytest.fixture
def options(tmp_path: Path) -> TrainingOptions:
    return TrainingOptions(
        model=SMALL, batches=BatchConfig(batch_tokens=3000), checkpoints=CheckpointConfig(save_dir=tmp_path)
    )


@pytest.fixture
def data(datasets: dict[str, Path]) -> TrainingData:
    return TrainingData.open([datasets["joined"]], False, BatchConfig())


def test_the_largest_micro_batch_grows_with_the_memory_of_a_gpu_within_its_bounds(
    data: TrainingData, options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity._Trial, "_peak", lambda self, tokens: 1000.0 * tokens)
    numbers = []
    for free in (1e4, 5e5, 1e6, 1e10):
        monkeypatch.setattr(capacity, "free_memory", lambda device, free=free: free)
        with fake_gpu(monkeypatch):
            numbers.append(capacity.with_batches_of_device(data, options, Ranks(GPU)).batches.max_tokens)
    assert numbers == sorted(numbers)
    assert numbers[0] == data.longest()  # at least a sentence, regardless of the memory
    assert data.longest() < numbers[1] < numbers[2] < numbers[3] == 3000  # at most an update


def test_the_longest_sentence_is_the_minimum_if_trials_run_out_of_memory(
    data: TrainingData, options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> float:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(capacity._Trial, "_peak_memory", fail)
    with fake_gpu(monkeypatch):
        found = capacity.with_batches_of_device(data, options, Ranks(GPU)).batches
    assert found.max_tokens == data.longest()


def test_a_packed_update_fits_into_one_micro_batch_for_each_rank(data: TrainingData, options: TrainingOptions) -> None:
    batches = BatchConfig(batch_tokens=6000, packing="on", max_tokens=4096)
    most = capacity._Trial(data, replace(options, batches=batches), Ranks(CPU, size=3)).at_most
    (train,) = data.splits
    lengths = [(train.source.lengths, train.target.lengths)]
    sampler = Mixture(lengths, [1.0], 6000, batches.planned_tokens, seed=1).samplers[0]
    for update in next(sampler.plans(START)):
        pairs = np.concatenate(update.micro_batches)
        assert max(side[pairs].sum() for side in lengths[0]) <= 3 * most


@pytest.mark.parametrize(("device", "given", "expected"), [("cpu", 0, 4096), ("cuda", 0, 3000), ("cuda", 300, 300)])
def test_the_default_micro_batch_is_large_on_a_gpu_only(
    device: str,
    given: int,
    expected: int,
    data: TrainingData,
    options: TrainingOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = replace(options, batches=replace(options.batches, max_tokens=given))
    monkeypatch.setattr(capacity._Trial, "_peak_memory", lambda self, batch: 1000.0)
    with fake_gpu(monkeypatch):
        found = capacity.with_batches_of_device(data, options, Ranks(torch.device(device))).batches
    assert (found.max_tokens, found.packing) == (expected, "off")


@pytest.mark.parametrize("has_numbered", [True, False])
def test_a_resumed_run_keeps_its_micro_batches_without_the_option(
    has_numbered: bool, data: TrainingData, options: TrainingOptions, train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 1, "--max-tokens", 300)
    assert last(tmp_path).progress["options"]["batches"]["max_tokens"] == 300
    if not has_numbered:  # checkpoint_last.pt was copied alone
        (tmp_path / "checkpoint_1.pt").unlink()
    found = capacity.with_batches_of_device(data, options, Ranks(CPU)).batches
    assert (found.max_tokens, found.packing) == (300, "off")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/pod/job", "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/pod/job",
            "sys/fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_the_memory_left_by_each_control_group_is_read(
    line: str, folder: str, names: tuple[str, str, str], tmp_path: Path
) -> None:
    def limit(group: str, most: object, used: int, caches: int) -> None:
        (tmp_path / folder / group).mkdir(parents=True, exist_ok=True)
        for name, value in zip(names, (most, used, f"anon 7\n{names[2]} {caches}"), strict=True):
            (tmp_path / folder / group / (name if name != names[2] else "memory.stat")).write_text(f"{value}\n")

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"9:cpu:/\n{line}\n")
    assert list(memory._left_of_control_groups(tmp_path)) == []  # not seen in a container
    limit("", "max", 30 * GIB, 0)
    limit("pod", 8 * GIB, 5 * GIB, 2 * GIB)
    limit("pod/job", 6 * GIB, 3 * GIB, GIB)
    assert sorted(memory._left_of_control_groups(tmp_path)) == [4 * GIB, 5 * GIB]


def test_a_control_group_can_limit_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_left_of_control_groups", lambda: [12345])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert memory.free_memory(torch.device("cpu")) == 12345


def test_a_max_tokens_word_other_than_auto_is_refused(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-tokens", "many", code=2)
    assert "--max-tokens" in result.stderr.decode()
    assert "neither a number nor auto" in result.stderr.decode()
