"""Training on several ranks, as torchrun starts them: the same run on any number of them, through any fault."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TINY
from patience import PATIENCE
from repository import ROOT
from training_runs import (
    OPTIONS,
    TIMES,
    TRAIN,
    assert_near,
    assert_same_rows,
    finish,
    last,
    metrics,
    start,
    updates,
    wait_for,
)

from nmtkit.data.batching import START
from nmtkit.data.corpus import Dataset
from nmtkit.data.mixture import Mixture
from nmtkit.training.loader import Loader, balanced_shares

FAULTY = ROOT / "tests/helpers/faulty_train.py"
QUICKLY_COMPILED = ROOT / "tests/helpers/quickly_compiled_train.py"


def numbers_of(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float) and name not in TIMES}


def assert_same(first: Path, second: Path) -> None:
    ours, theirs = last(first), last(second)
    assert all(np.array_equal(tensor, theirs.weights[name]) for name, tensor in ours.weights.items())
    assert ours.optimizer is not None
    assert theirs.optimizer is not None
    assert all(np.array_equal(tensor, theirs.optimizer[name]) for name, tensor in ours.optimizer.items())


def test_the_costliest_micro_batches_are_assigned_first() -> None:
    assert balanced_shares([5, 9, 1, 4], 2) == [[1, 2], [0, 3]]
    assert balanced_shares([3, 3], 3) == [[0], [1], []]


def test_every_micro_batch_goes_to_one_rank(datasets: dict[str, Path]) -> None:
    split = Dataset.open(datasets["joined"]).split("train")
    mixture = Mixture([(split.source.lengths, split.target.lengths)], [1.0], batch_tokens=500, max_tokens=100, seed=1)
    loaders = [Loader([split], mixture, rank, 3, num_workers=0).updates([START]) for rank in range(3)]
    for _ in range(5):
        works = [next(loader) for loader in loaders]
        assert sorted(number for work in works for number in work.numbers) == list(
            range(len(works[0].update.micro_batches))
        )
        real = sum(batch.target_tokens + batch.source_tokens for work in works for (batch,) in work.batches)
        assert [work.tokens for work in works] == [real] * 3


@pytest.fixture(scope="module")
def runs(datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same run of 50 updates on 1, 2 and 3 ranks; some updates have fewer micro-batches than there are ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    options = (*OPTIONS, "--max-updates", 50)
    for ranks in (1, 2, 3):
        finish(start(ranks, TRAIN, datasets["joined"], "--save-dir", folder / str(ranks), *options))
    return {ranks: folder / str(ranks) for ranks in (1, 2, 3)}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_run_is_the_same_on_any_number_of_ranks(ranks: int, runs: dict[int, Path]) -> None:
    assert_near(runs[ranks], runs[1])
    for event in ("train", "valid"):
        ours, theirs = metrics(runs[ranks], event), metrics(runs[1], event)
        assert [row["update"] for row in ours] == [row["update"] for row in theirs]
        for row, other in zip(ours, theirs, strict=True):
            numbers = numbers_of(row)
            assert numbers.keys() == numbers_of(other).keys()
            for name, value in numbers.items():
                rounding = 1e-2 if name == "gradient_norm" else 1e-3  # the nearer a gradient is to 0, the more it shows
                assert value == pytest.approx(other[name], rel=rounding), name


@pytest.mark.slow
def test_several_ranks_that_compile_train_like_one_process_that_does_not(
    datasets: dict[str, Path], tmp_path: Path
) -> None:
    options = (datasets["joined"], *TINY, "--dropout", 0, "--adam-eps", 1e-5, "--max-updates", 6)
    finish(start(1, TRAIN, *options, "--save-dir", tmp_path / "plain"))
    compiled = ("--save-dir", tmp_path / "compiled", "--compile", "--activation-checkpointing")
    finish(start(2, QUICKLY_COMPILED, *options, *compiled))
    assert_near(tmp_path / "compiled", tmp_path / "plain")


@pytest.mark.slow
def test_validation_has_the_same_value_on_any_number_of_ranks(datasets: dict[str, Path], tmp_path: Path) -> None:
    still = (*TINY, "--max-updates", 1, "--lr-scale", 1e-30, "--valid-bleu", "--max-tokens", 100)
    rows = []
    for ranks in (1, 2):
        finish(start(ranks, TRAIN, datasets["joined"], "--save-dir", tmp_path / str(ranks), *still))
        rows += metrics(tmp_path / str(ranks), "valid")
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_ranks(
    datasets: dict[str, Path], runs: dict[int, Path], tmp_path: Path
) -> None:
    options = (datasets["joined"], "--save-dir", tmp_path, *OPTIONS)
    for ranks, end in ((2, 20), (1, 30), (3, 50)):
        finish(start(ranks, TRAIN, *options, "--max-updates", end))
    assert_near(tmp_path, runs[1])
    optimizer = last(tmp_path).optimizer
    assert optimizer is not None
    assert optimizer.keys() == (last(runs[1]).optimizer or {}).keys()


@pytest.mark.slow
def test_torchrun_resumes_from_the_last_checkpoint_when_one_rank_is_killed(
    datasets: dict[str, Path], runs: dict[int, Path], tmp_path: Path
) -> None:
    options = (datasets["joined"], "--save-dir", tmp_path, *OPTIONS, "--save-every", 10)
    lines = finish(start(2, FAULTY, "die", 1, 37, *options, "--max-updates", 50, restarts=1))
    assert sum("connection to another process" in line for line in lines) == 1
    assert not any("Traceback" in line for line in lines)
    assert any("resuming after update 30" in line for line in lines)
    assert_same(tmp_path, runs[2])
    assert_same_rows(tmp_path, runs[2])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_all_ranks_retry_when_one_runs_out_of_memory(place: str, datasets: dict[str, Path], tmp_path: Path) -> None:
    options = (*TINY, "--dropout", 0, "--adam-eps", 1e-6, "--max-updates", 12)  # parts have masks of their own
    finish(start(1, TRAIN, datasets["joined"], "--save-dir", tmp_path / "straight", *options))
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        lines = finish(start(ranks, FAULTY, place, ranks - 1, 7, datasets["joined"], "--save-dir", folder, *options))
        assert any("update 7: out of memory; retrying with at most" in line for line in lines)
        assert_near(folder, tmp_path / "straight")
        progress = last(folder).progress
        assert progress["out_of_memory"] >= 1
        assert progress["memory_limit"]
        assert metrics(folder, "train")[-1]["out_of_memory"] >= 1


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_stops_all_ranks(
    datasets: dict[str, Path], runs: dict[int, Path], tmp_path: Path
) -> None:
    options = (datasets["joined"], "--save-dir", tmp_path, *OPTIONS)
    process = start(2, TRAIN, *options, "--max-updates", 1_000_000)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists() and len(metrics(tmp_path, "train")) > 3, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    lines = stderr.decode().splitlines()
    assert lines.count("SIGTERM: finishing and saving this update first") == 1
    said = [line for line in lines if line.startswith("nmt-train: SIGTERM")]
    assert len(said) == 1
    number = re.search(r"update (\d+) is done and saved", said[0])
    assert number is not None
    assert updates(tmp_path)[-1] == int(number[1])
    if int(number[1]) < 50:
        finish(start(2, TRAIN, *options, "--max-updates", 50))
        assert_same(tmp_path, runs[2])
        assert_same_rows(tmp_path, runs[2])


@pytest.mark.slow
def test_all_ranks_save_and_end_when_stderr_has_lost_its_reader(datasets: dict[str, Path], tmp_path: Path) -> None:
    never = ("--save-every", 1_000_000, "--max-updates", 1_000_000)
    process = start(2, TRAIN, datasets["joined"], "--save-dir", tmp_path, *OPTIONS, *never)
    assert process.stderr
    assert any(b"model: " in line for line in iter(process.stderr.readline, b""))
    process.stderr.close()
    assert process.wait(timeout=PATIENCE) != 0
    assert updates(tmp_path) != []
