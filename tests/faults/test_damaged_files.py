"""Damaged, wrong and mismatched files are refused with one line that names the file and exit code 2."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import TINY, Run, Train
from forged import with_header
from training_runs import tensors, updates

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def newer(path: Path) -> None:
    path.write_bytes(with_header(path.read_bytes(), {"version": 9}))


def not_finite(path: Path) -> None:
    checkpoint = load_checkpoint(path)
    weights = {name: weight.copy() for name, weight in checkpoint.weights.items()}
    next(iter(weights.values())).ravel()[5] = float("nan")
    save_checkpoint(path, replace(checkpoint, weights=weights, progress={**checkpoint.progress}))


DAMAGES: list[Damage] = [flip, cut, newer, lambda path: path.write_bytes(b""), lambda path: path.write_text("a text\n")]


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copy(tiny_checkpoint, tmp_path / "damaged.pt"))


@pytest.mark.parametrize("damage", [*DAMAGES, not_finite])
def test_every_command_refuses_a_damaged_checkpoint(
    damage: Damage, checkpoint: Path, tiny_checkpoint: Path, datasets: dict[str, Path], run_here: Run, tmp_path: Path
) -> None:
    damage(checkpoint)
    for command, words in (
        ("nmt-average", (tiny_checkpoint, checkpoint)),
        ("nmt-export", (checkpoint, "--to", "safetensors")),
        ("nmt-generate", ("--checkpoint", checkpoint)),
        ("nmt-train", (datasets["joined"], *TINY, "--init-from", checkpoint, "--save-dir")),
    ):
        if command == "nmt-generate" and damage is not_finite:
            continue  # a user can look at such a model
        output = [tmp_path / "new"] if command == "nmt-train" else ["--output", tmp_path / "new"]
        done = run_here(command, *words, *output)
        *_, line = done.stderr.decode().splitlines()
        assert (done.returncode, str(checkpoint) in line) == (2, True), done.stderr
        assert b"Traceback" not in done.stderr
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("damage", [flip, cut, lambda path: path.unlink()])
def test_every_damaged_file_of_a_dataset_is_named(
    damage: Damage, datasets: dict[str, Path], run_here: Run, tmp_path: Path
) -> None:
    for name in ("dataset.json", "train.en.bin", "train.de.idx", "vocab.txt", "spm.model"):
        dataset = tmp_path / f"without-{name}"
        shutil.copytree(datasets["joined"], dataset)
        damage(dataset / name)
        done = run_here("nmt-train", dataset, "--save-dir", tmp_path / "run", *TINY, "--max-updates", 1)
        assert (done.returncode, name in done.stderr.decode().splitlines()[-1]) == (2, True), done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", [flip, cut, newer, not_finite])
def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_it_used(
    damage: Damage, train: Train, tmp_path: Path
) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    for folder in (run, straight):
        train(folder, "--max-updates", 4, "--save-every", 2)
    damage(run / "checkpoint_4.pt")
    for folder in (run, straight):
        said = train(folder, "--max-updates", 6, "--save-every", 2).stderr.decode()
        warnings = [line for line in said.splitlines() if "checkpoint_4.pt" in line]
        assert [("warning: " in line) for line in warnings] == [True, True] * (folder == run)
    ours, theirs = tensors(run), tensors(straight)
    assert all(np.array_equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert (run / "checkpoint_4.pt.unusable").exists()
    assert updates(run) == [2, 4, 6]


def test_an_average_or_renamed_checkpoint_in_a_run_is_reported_and_set_aside(
    train: Train, checkpoint: Path, tmp_path: Path
) -> None:
    train(tmp_path / "run", "--max-updates", 2)
    shutil.copy(checkpoint, tmp_path / "run/checkpoint_3.pt")
    shutil.copy(tmp_path / "run/checkpoint_2.pt", tmp_path / "run/checkpoint_9.pt")
    said = train(tmp_path / "run", "--max-updates", 4).stderr.decode()
    assert "checkpoint_3.pt is an average or an import" in said
    assert "checkpoint_9.pt was saved after update 2, not 9 as its name says" in said
    assert {path.name for path in (tmp_path / "run").glob("*.unusable")} == {
        f"checkpoint_{update}.pt.unusable" for update in (3, 9)
    }


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 4, "--save-every", 2)
    for path in {*tmp_path.glob("checkpoint_?.pt")}:
        cut(path)
    said = train(tmp_path, "--max-updates", 6, code=2).stderr.decode()
    assert [said.count(f"checkpoint_{update}.pt: truncated") for update in (2, 4)] == [1, 1]
    assert str(tmp_path) in said.splitlines()[-1]
    assert updates(tmp_path) == [2, 4]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_checkpoint_that_cannot_be_read_now_stops_the_run(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    (tmp_path / "checkpoint_2.pt").chmod(0)
    assert "make it readable" in train(tmp_path, "--max-updates", 4, code=2).stderr.decode()
    assert updates(tmp_path) == [2]


def test_the_checkpoints_of_another_model_are_refused(
    train: Train, datasets: dict[str, Path], make_checkpoint: Callable[..., Checkpoint], run_here: Run, tmp_path: Path
) -> None:
    train(tmp_path / "run", "--max-updates", 2)
    before = torch.load(tmp_path / "run/checkpoint_2.pt", weights_only=True)["header"]
    for changes in (["--d-ff", 28], ["--share-embeddings", "none"]):
        assert b"a different model" in train(tmp_path / "run", *changes, code=2).stderr
    said = train(tmp_path / "run", code=2, dataset=datasets["separate"]).stderr.decode()
    assert str(datasets["separate"]) in said or "a different model" in said
    assert torch.equal(torch.load(tmp_path / "run/checkpoint_2.pt", weights_only=True)["header"], before)
    for number, width in ((1, 16), (2, 32)):
        save_checkpoint(tmp_path / f"{number}.pt", make_checkpoint(d_ff=width))
    done = run_here("nmt-average", tmp_path / "1.pt", tmp_path / "2.pt", "--output", tmp_path / "new.pt")
    assert (done.returncode, b"2.pt cannot be averaged with" in done.stderr) == (2, True)
