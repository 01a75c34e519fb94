"""--max-tokens auto: what fits is found by trial, stands in the checkpoint, and is not found anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import fake_gpu

from nmtkit.checkpoint import load_checkpoint
from nmtkit.data.corpus import Dataset
from nmtkit.data.mixture import Mixture
from nmtkit.machine import memory
from nmtkit.model.config import TransformerConfig
from nmtkit.training import capacity
from nmtkit.training.config import BatchConfig, CheckpointConfig, TrainingOptions
from nmtkit.training.learner import Learner
from nmtkit.training.ranks import Ranks
from nmtkit.training.training_data import TrainingData

Train = Callable[..., Any]


def found(folder: Path) -> int:
    number = load_checkpoint(folder / "checkpoint_last.pt").progress["options"]["batches"]["max_tokens"]
    assert isinstance(number, int)
    return number


def test_peak_memory_counts_tensors_while_they_are_alive() -> None:
    def work() -> None:
        first = torch.zeros(1000)
        second = first + 1  # 8,000 bytes held
        del first
        third = second.view(10, 100) * 2  # a view is no memory
        del second, third
        torch.zeros(100).sum()

    assert capacity._peak_memory(torch.device("cpu"), work) == 8000


def test_auto_max_tokens_grows_with_free_memory_within_its_bounds(
    train: Train, datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = []
    for megabytes in (0.1, 1, 4, 10_000):
        monkeypatch.setattr(capacity, "free_memory", lambda device, size=megabytes: size * 1e6)
        run = tmp_path / str(megabytes)
        result = train(run, "--max-updates", 1, "--max-tokens", "auto", "--batch-tokens", 3000)
        numbers.append(found(run))
        assert f"--max-tokens auto: {numbers[-1]}\n" in result.stderr.decode()
    longest = Dataset.open(datasets["joined"]).split("train").longest()
    assert numbers == sorted(numbers)
    assert numbers[0] == longest  # at least a sentence, whatever the memory
    assert longest < numbers[1] < numbers[2] < 3000
    assert numbers[3] == 3000  # of what use would be more than an update


def test_auto_falls_back_to_the_longest_sentence_if_trials_run_out_of_memory(
    train: Train, datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peak(device: torch.device, work: Callable[[], None]) -> float:
        torch.empty(1 << 60, dtype=torch.uint8)
        return 0.0

    monkeypatch.setattr(capacity, "_peak_memory", peak)
    train(tmp_path, "--max-updates", 1, "--max-tokens", "auto")
    assert found(tmp_path) == Dataset.open(datasets["joined"]).split("train").longest()


def test_the_trial_model_has_the_size_of_the_model_of_the_run(datasets: dict[str, Path]) -> None:
    small = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    options = TrainingOptions(model=small)
    data, ranks = TrainingData.open([datasets["separate"]], False, options.batches), Ranks(torch.device("cpu"))
    dataset = data.first
    assert len(dataset.source.vocab) == len(dataset.target.vocab)  # and yet not the same
    model = Learner(dataset, dataset.languages, options, ranks).model
    assert capacity._Trial(data, options, ranks).kept == 8 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "most"), [(1, 3000), (4, 750), (1000, 3)])
def test_auto_max_tokens_leaves_a_micro_batch_for_each_rank(size: int, most: int, datasets: dict[str, Path]) -> None:
    """At least for the longest sentence."""
    small = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    options = TrainingOptions(model=small, batches=BatchConfig(batch_tokens=3000))
    ranks = Ranks(torch.device("cpu"), size=size)
    data = TrainingData.open([datasets["joined"]], False, options.batches)
    assert capacity._Trial(data, options, ranks).at_most == max(most, data.longest())


def test_a_packed_update_fits_into_one_micro_batch_for_each_rank(datasets: dict[str, Path]) -> None:
    small = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    options = TrainingOptions(model=small, batches=BatchConfig(batch_tokens=6000, packing="on"))
    data = TrainingData.open([datasets["joined"]], False, options.batches)
    most = capacity._Trial(data, options, Ranks(torch.device("cpu"), size=3)).at_most
    (train,) = data.splits
    lengths = [(train.source.lengths, train.target.lengths)]
    for update in Mixture(lengths, [1.0], 6000, options.batches.planned_tokens, seed=1).samplers[0].epoch(1):
        pairs = np.concatenate(update.micro_batches)
        assert max(side[pairs].sum() for side in lengths[0]) <= 3 * most


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("cpu", None, 4096), ("cuda", None, 25_000), ("cuda", 300, 300), ("cpu", 0, 25_000)],
)
def test_the_default_micro_batch_is_large_on_a_gpu_only(
    device: str,
    given: int | None,
    expected: int,
    datasets: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2)
    options = TrainingOptions(
        model=small, batches=BatchConfig(max_tokens=given), checkpoints=CheckpointConfig(save_dir=tmp_path)
    )
    data = TrainingData.open([datasets["joined"]], False, options.batches)
    monkeypatch.setattr(capacity, "_peak_memory", lambda device, work: 1000.0)
    with fake_gpu(monkeypatch):
        found = capacity.with_batches_of_device(data, options, Ranks(torch.device(device))).batches
    assert found.max_tokens == expected
    assert found.packing == "off"


@pytest.mark.parametrize("has_numbered", [True, False])
def test_a_resumed_run_keeps_its_micro_batches_without_the_option(
    has_numbered: bool, train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 1, "--max-tokens", 300)
    if not has_numbered:  # checkpoint_last.pt was copied alone
        (tmp_path / "checkpoint_1.pt").unlink()
    options = TrainingOptions(checkpoints=CheckpointConfig(save_dir=tmp_path))
    recorded = capacity._recorded(options.checkpoints)
    assert recorded == {"max_tokens": 300, "packing": "off"}
    assert capacity._max_tokens(recorded, None, options, Ranks(torch.device("cpu"))) == 300  # type: ignore[arg-type]


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


def test_a_resumed_run_keeps_its_auto_max_tokens(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = ("--max-tokens", "auto", "--dropout", 0.3)
    monkeypatch.setattr(capacity, "free_memory", lambda device: 1e6)
    train(tmp_path / "whole", "--max-updates", 4, *auto)
    train(tmp_path / "parts", "--max-updates", 2, *auto)
    monkeypatch.setattr(capacity, "free_memory", lambda device: 3e6)
    result = train(tmp_path / "parts", "--max-updates", 4, *auto)
    assert "other options" not in result.stderr.decode()
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert found(tmp_path / "whole") == found(tmp_path / "parts")
    assert all(torch.equal(weight, parts.weights[name]) for name, weight in whole.weights.items())


def test_a_max_tokens_word_other_than_auto_is_refused(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-tokens", "many", code=2)
    assert "--max-tokens" in result.stderr.decode()
    assert "neither a number nor auto" in result.stderr.decode()
