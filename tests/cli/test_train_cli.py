"""nmt-train through the real command: what it writes, that it goes on as if never stopped, and how it refuses."""

import fcntl
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import TINY, Run, Train
from repository import BIN
from torch import Tensor
from training_runs import DROPOUT, TIMES, assert_same_end, environment, metrics, refused, tensors, updates

from nmtkit.checkpoint import load_checkpoint, save_checkpoint
from nmtkit.data import batching
from nmtkit.data.batch import Batch
from nmtkit.data.corpus import Dataset
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.training.averaging import average_checkpoints
from nmtkit.training.gradient import UpdateGradient
from nmtkit.training.loss import MicroBatchLoss

# What a run leaves


def test_training_lowers_the_loss_and_writes_the_documented_files(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--max-updates", 60, "--validate-every", 20, "--lr-scale", 2)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    numbered = {f"checkpoint_{update}.pt" for update in (20, 40, 60)}
    assert names == {*numbered, "checkpoint_last.pt", "checkpoint_best.pt", "metrics.jsonl", "options.json"}
    rows, valid = metrics(tmp_path / "run", "train"), metrics(tmp_path / "run", "valid")
    assert [row["update"] for row in rows] == list(range(1, 61))
    assert rows[-1]["loss"] < 0.85 * rows[0]["loss"]
    assert valid[-1]["valid_ppl"] == pytest.approx(math.exp(valid[-1]["valid_nll"]))
    assert [row["update"] for row in valid] == [20, 40, 60]
    for row in rows:
        assert row["ppl"] == pytest.approx(math.exp(row["nll"]))
        assert row["lr"] == pytest.approx(2 * 16**-0.5 * min(row["update"] ** -0.5, row["update"] * 20**-1.5))
        assert 0 <= row["padding"] < 0.5
        assert row["gradient_norm"] > 0
    options = json.loads((tmp_path / "run" / "options.json").read_text())
    assert options["model"]["d_model"] == 16
    assert options["stop"]["max_updates"] == 60
    messages = result.stderr.decode()
    for word in (
        "parameters",
        "240 pairs",
        "cpu",
        "60 to go",
        "loss",
        "ppl",
        "lr",
        "gradient_norm",
        "tokens_per_second",
    ):
        assert word in messages
    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoint_last.pt")
    assert checkpoint.progress["update"] == 60
    assert (checkpoint.source_language, checkpoint.target_language, checkpoint.joined) == ("en", "de", True)


def test_checkpoint_last_and_checkpoint_best_are_the_last_and_the_best_checkpoints(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 40, "--validate-every", 5, "--lr-scale", 9, "--keep-last", 2, "--keep-best", 2)
    losses = {row["update"]: row["valid_loss"] for row in metrics(tmp_path, "valid")}
    ranked = sorted(losses, key=losses.__getitem__)
    assert updates(tmp_path) == sorted({*ranked[:2], 35, 40})
    assert ranked[0] not in (35, 40)  # at this learning rate the last is not the best
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == (tmp_path / "checkpoint_40.pt").read_bytes()
    best = tmp_path / f"checkpoint_{ranked[0]}.pt"
    assert (tmp_path / "checkpoint_best.pt").read_bytes() == best.read_bytes()
    assert load_checkpoint(best).progress["best"] == losses[ranked[0]]


def test_checkpoints_are_saved_every_n_updates_or_minutes(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "updates", "--max-updates", 7, "--save-every", 3)
    assert updates(tmp_path / "updates") == [3, 6, 7]
    train(tmp_path / "minutes", "--max-updates", 3, "--save-minutes", 1e-9)
    assert updates(tmp_path / "minutes") == [1, 2, 3]


def test_with_separate_vocabularies_target_embedding_and_projection_share_a_matrix_by_default(
    train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 2, dataset=datasets["separate"])
    checkpoint = load_checkpoint(tmp_path / "checkpoint_last.pt")
    assert checkpoint.model_config.to_dict()["share_embeddings"] == "decoder"
    assert not checkpoint.joined
    assert checkpoint.source.vocab != checkpoint.target.vocab
    assert "source_embedding.weight" in checkpoint.weights
    assert checkpoint.build_model().projection is None


@pytest.mark.parametrize(("kind", "score"), [("joined", "sacrebleu"), ("separate", "tokenized")])
def test_validation_bleu_selects_the_best_checkpoint(
    kind: str, score: str, train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(
        tmp_path, "--max-updates", 4, "--validate-every", 2, "--valid-bleu", "--valid-beam", 2, dataset=datasets[kind]
    )
    rows = metrics(tmp_path, "valid")
    assert [row["update"] for row in rows] == [2, 4]
    assert all(0 <= row["valid_bleu"] <= 100 for row in rows)
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert progress["best_metric"] == "valid_bleu"
    assert progress["best"] == max(row["valid_bleu"] for row in rows)


def test_json_log_lines_are_valid_json(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-updates", 2, "--warmup-updates", 1, "--log-format", "json")
    events = [json.loads(line) for line in result.stderr.decode().splitlines()]
    assert [event["update"] for event in events if event["event"] == "train"] == [1, 2]
    assert {event["event"] for event in events} == {"info", "train", "valid"}


@pytest.mark.parametrize(
    ("stop", "end"), [(("--max-epochs", 2), None), (("--max-minutes", 1e-9), 1), (("--max-updates", 3), 3)]
)
def test_a_run_stops_at_the_requested_limit(
    stop: tuple[Any, ...], end: int | None, train: Train, tmp_path: Path
) -> None:
    result = train(tmp_path, *stop)
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert end is None or progress["update"] == end
    assert end is not None or (progress["epoch"], progress["updates_in_epoch"]) == (3, 0)
    assert f"stopped after update {progress['update']}: {stop[0]}" in result.stderr.decode()
    assert "nothing is left to train" not in result.stderr.decode()
    again = train(tmp_path, *stop)  # nothing is left to do
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress == progress
    assert f"stopped after update {progress['update']}: {stop[0]}" in again.stderr.decode()


def test_max_minutes_includes_the_time_before_a_resume(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    checkpoint = load_checkpoint(tmp_path / "checkpoint_2.pt")
    checkpoint.progress["minutes"] = 600.0
    save_checkpoint(tmp_path / "checkpoint_2.pt", checkpoint)
    train(tmp_path, "--max-updates", 9, "--max-minutes", 600.0001)
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert progress["minutes"] > 600
    train(tmp_path, "--max-updates", 9, "--max-minutes", 500)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress == progress


@pytest.mark.parametrize("stop", [("--max-updates", 3), ("--max-epochs", 1)])
def test_restarting_a_finished_run_does_nothing(stop: tuple[Any, ...], train: Train, tmp_path: Path) -> None:
    arguments = (tmp_path, *stop, "--validate-every", 2, "--log-every", 7)
    train(*arguments)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert "nothing is left to train" in train(*arguments).stderr.decode()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_bfloat16_training_stays_close_to_single_precision(train: Train, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        train(tmp_path / precision, "--max-updates", 10, "--precision", precision)
    ours, exact = (metrics(tmp_path / precision, "train") for precision in ("bf16", "fp32"))
    for row, expected in zip(ours, exact, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=0.01)
    assert all(tensor.dtype == torch.float32 for tensor in tensors(tmp_path / "bf16").values())


def test_the_same_command_gives_the_same_weights_with_any_number_of_data_workers(train: Train, tmp_path: Path) -> None:
    for workers in (0, 1, 3):
        train(tmp_path / str(workers), "--max-updates", 4, "--num-workers", workers)
        assert_same_end(tmp_path / str(workers), tmp_path / "0")
    train(tmp_path / "seed", "--max-updates", 4, "--seed", 2)
    assert any(not torch.equal(t, tensors(tmp_path / "0")[name]) for name, t in tensors(tmp_path / "seed").items())


# Going on


@pytest.fixture
def straight(train: Train, tmp_path: Path) -> Path:
    """The folder of a run of 24 updates in four epochs, with every dropout, that was never stopped."""
    train(tmp_path / "straight", "--max-updates", 24, "--validate-every", 6, *DROPOUT)
    assert metrics(tmp_path / "straight", "train")[-1]["epoch"] >= 3
    return tmp_path / "straight"


def test_a_run_resumed_several_times_ends_like_an_uninterrupted_run(
    train: Train, straight: Path, tmp_path: Path
) -> None:
    for end in (6, 12, 24):
        train(tmp_path / "run", "--max-updates", end, "--validate-every", 6, *DROPOUT)
    assert_same_end(tmp_path / "run", straight)
    for event in ("train", "valid"):
        rows, expected = metrics(tmp_path / "run", event), metrics(straight, event)
        assert [row["update"] for row in rows] == [row["update"] for row in expected]
        for row, other in zip(rows, expected, strict=True):
            for name in row.keys() - TIMES:
                assert row[name] == other[name]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_resumed_run_in_bf16_ends_like_an_uninterrupted_run(norm: str, train: Train, tmp_path: Path) -> None:
    options = ("--precision", "bf16", "--norm", norm, "--dropout", 0.1, "--validate-every", 3)
    train(tmp_path / "straight", "--max-updates", 6, *options)
    for end in (3, 6):
        train(tmp_path / "run", "--max-updates", end, *options)
    assert_same_end(tmp_path / "run", tmp_path / "straight")


def test_resuming_from_an_older_checkpoint_gives_the_same_result_without_duplicate_metrics(
    train: Train, straight: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(run, "--max-updates", 17, "--validate-every", 6, "--save-every", 5, *DROPOUT)
    for name in (15, 17, "last"):
        (run / f"checkpoint_{name}.pt").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "upd')  # as a kill leaves it
    train(run, "--max-updates", 24, "--validate-every", 6, *DROPOUT)
    assert_same_end(run, straight)
    assert [row["update"] for row in metrics(run, "train")] == list(range(1, 25))
    assert [row["update"] for row in metrics(run, "valid")] == [6, 12, 18, 24]


def test_a_run_killed_at_any_moment_resumes_like_an_uninterrupted_run(
    train: Train, straight: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    run, moment = tmp_path / "run", random.Random(4)
    command = [sys.executable, BIN / "nmt-train", datasets["joined"], "--save-dir", run, *TINY, *DROPOUT]
    command += ["--max-updates", 100_000, "--validate-every", 6, "--save-every", 1, "--keep-last", 100_000]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL, env=environment())
    try:
        while not (updates(run) and updates(run)[-1] >= 2) and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moment.random() / 10)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
    for update, path in list_checkpoints(run):
        assert load_checkpoint(path).progress["update"] == update  # whole, all of them
        if update >= 24:  # more than the straight run has seen
            path.unlink()
    train(run, "--max-updates", 24, "--validate-every", 6, *DROPOUT)
    assert_same_end(run, straight)


def test_a_kill_while_a_checkpoint_is_written_loses_only_that_checkpoint(
    train: Train, straight: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    killed = """if True:
        import os, sys
        sync = os.fsync
        def fsync(handle):
            if any(name.startswith(".checkpoint_3.pt.") for name in os.listdir(sys.argv[3])):
                os.kill(os.getpid(), 9)
            sync(handle)
        os.fsync = fsync
        from nmtkit.cli.train import main
        main()
    """
    command = [sys.executable, "-c", killed, datasets["joined"], "--save-dir", run, *TINY, *DROPOUT]
    command += ["--max-updates", 24, "--validate-every", 6, "--save-every", 1]
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, env=environment(), cwd=BIN.parent, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert updates(run) == [1, 2]
    (half,) = run.glob(".checkpoint_3.pt.*")
    assert half.stat().st_size > 0
    train(run, "--max-updates", 24, "--validate-every", 6, *DROPOUT)
    assert_same_end(run, straight)
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_a_restart_repairs_outdated_checkpoint_last_and_checkpoint_best(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 6, "--validate-every", 3)
    best = (tmp_path / "checkpoint_best.pt").read_bytes()
    assert best == (tmp_path / "checkpoint_6.pt").read_bytes()
    for name in ("last", "best"):
        shutil.copyfile(tmp_path / "checkpoint_3.pt", tmp_path / "other.pt")
        (tmp_path / "other.pt").replace(tmp_path / f"checkpoint_{name}.pt")
    train(tmp_path, "--max-updates", 6, "--validate-every", 3)
    for name in ("last", "best"):
        assert (tmp_path / f"checkpoint_{name}.pt").read_bytes() == best


def test_patience_survives_a_restart(train: Train, tmp_path: Path) -> None:
    options = ("--validate-every", 2, "--lr-scale", 30, "--patience", 4)
    result = train(tmp_path / "straight", "--max-updates", 200, *options)
    assert "--patience 4" in result.stderr.decode()
    (end, *_) = reversed([row["update"] for row in metrics(tmp_path / "straight", "valid")])
    for stop in (end - 4, end - 2, 200):  # stops while patience is running out
        result = train(tmp_path / "run", "--max-updates", stop, *options)
    assert (
        f"stopped after update {end}: 4 validations without a better valid_loss (--patience 4)"
        in result.stderr.decode()
    )
    assert_same_end(tmp_path / "run", tmp_path / "straight")


def test_an_fp16_run_resumes_with_its_loss_scale(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = UpdateGradient._backward

    def backward(self: UpdateGradient, update: int, *arguments: Any) -> Tensor:
        sums = original(self, update, *arguments)
        gradient = next(self.loss.parameters()).grad
        if update == 2 and gradient is not None:
            gradient.fill_(float("inf"))
        return sums

    monkeypatch.setattr(UpdateGradient, "_backward", backward)
    options = ("--precision", "fp16", "--validate-every", 4)
    train(tmp_path / "straight", *options, "--max-updates", 7)
    for end in (4, 7):
        train(tmp_path / "stopped", *options, "--max-updates", end)
    assert_same_end(tmp_path / "stopped", tmp_path / "straight")
    progress = load_checkpoint(tmp_path / "stopped" / "checkpoint_last.pt").progress
    assert (progress["skipped"], progress["scaler"]["scale"], progress["scaler"]["_growth_tracker"]) == (1, 32768, 5)


def test_memory_limits_learned_from_out_of_memory_errors_survive_a_resume(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = MicroBatchLoss.forward

    def limited(self: MicroBatchLoss, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.training and len(batch.src) > 12:
            raise MemoryError
        return forward(self, batch)

    monkeypatch.setattr(MicroBatchLoss, "forward", limited)
    for end in (5, 9):
        train(tmp_path / "stopped", "--max-updates", end, "--validate-every", 5)
    train(tmp_path / "straight", "--max-updates", 9, "--validate-every", 5)
    assert_same_end(tmp_path / "stopped", tmp_path / "straight")
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint_5.pt").progress["memory_limits"]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # its other names keep what they have
    path.write_bytes(content)


def test_a_damaged_newest_checkpoint_is_reported_and_skipped(train: Train, straight: Path) -> None:
    expected = tensors(straight)
    damage(straight / "checkpoint_24.pt")
    result = train(straight, "--max-updates", 24, "--validate-every", 6, *DROPOUT)
    assert re.search(r"warning: \S*checkpoint_24\.pt: damaged.*the previous", result.stderr.decode())
    assert "resuming after update 18" in result.stderr.decode()
    again = tensors(straight)
    assert all(torch.equal(tensor, again[name]) for name, tensor in expected.items())


def test_a_damaged_checkpoint_does_not_count_toward_the_checkpoints_kept(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 9, "--save-every", 3)
    damage(tmp_path / "checkpoint_9.pt")
    train(tmp_path, "--max-updates", 7, "--save-every", 1, "--keep-last", 1)
    assert 7 in updates(tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint_7.pt").progress["update"] == 7


def test_a_folder_with_only_damaged_checkpoints_is_refused(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2, "--save-every", 1)
    for update in (1, 2):
        damage(tmp_path / f"checkpoint_{update}.pt")
    refused(train(tmp_path, code=2), f"--save-dir {tmp_path}", "2 checkpoints", "move them away")


def test_changing_the_metric_restarts_the_ranking_of_checkpoints(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 4, "--validate-every", 2)
    said = train(tmp_path, "--max-updates", 6, "--validate-every", 2, "--valid-bleu").stderr.decode()
    assert said.count("the best checkpoint is now selected by valid_bleu, not by valid_loss") == 1
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert progress["best"] == progress["valid_bleu"]
    assert [update for update, _ in progress["checkpoint_validations"]] == [4, 6]
    rows = metrics(tmp_path, "valid")
    assert [(row["update"], "valid_bleu" in row) for row in rows] == [(2, False), (4, True), (6, True)]


def test_a_changed_option_that_affects_the_run_is_reported(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    result = train(tmp_path, "--max-updates", 3, "--batch-tokens", 500)
    assert "warning: options have changed since the checkpoint: batch_tokens was 400, is 500" in result.stderr.decode()


def test_all_changed_options_that_affect_the_run_are_reported_at_once(train: Train, tmp_path: Path) -> None:
    falling = ("--lr-schedule", "linear", "--warmup-updates", 1)
    train(tmp_path, "--max-updates", 2, *falling)
    changed = ("--batch-tokens", 500, "--clip-norm", 1, "--freeze", "encoder.*", "--precision", "bf16")
    said = train(tmp_path, "--max-updates", 4, *falling, *changed, "--log-every", 2).stderr.decode()
    assert (
        "options have changed since the checkpoint: batch_tokens was 400, is 500; clip_norm was 0.0, is 1.0; "
        "freeze was [], is ['encoder.*']; max_updates was 2, is 4; precision was fp32, is bf16\n"
    ) in said


def test_more_updates_give_no_warning_if_the_schedule_does_not_depend_on_max_updates(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 1)
    assert "other options" not in train(tmp_path, "--max-updates", 2).stderr.decode()


def test_changing_the_validation_split_warns_and_restarts_the_ranking_of_checkpoints(
    train: Train, other_validation: Path, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 2)
    result = train(tmp_path, "--max-updates", 4, "--lr-scale", 1e-9, dataset=other_validation)
    assert "warning: the validation split has changed" in result.stderr.decode()
    progress = load_checkpoint(tmp_path / "checkpoint_4.pt").progress
    assert progress["best"] == progress["valid_loss"]
    assert [update for update, _ in progress["checkpoint_validations"]] == [4]
    assert "another validation" not in train(tmp_path, "--max-updates", 5, dataset=other_validation).stderr.decode()


def test_a_finished_run_is_validated_on_another_split(train: Train, other_validation: Path, tmp_path: Path) -> None:
    for folder, dataset in (("once", {"dataset": other_validation}), ("twice", {})):
        train(tmp_path / folder, "--max-updates", 2, **dataset)
    for _ in range(2):
        train(tmp_path / "twice", "--max-updates", 2, dataset=other_validation)
    (expected,), (row,) = (metrics(tmp_path / folder, "valid") for folder in ("once", "twice"))
    assert row == expected
    assert_same_end(tmp_path / "twice", tmp_path / "once")


def test_metrics_recorded_just_before_a_kill_are_not_recorded_twice(train: Train, tmp_path: Path) -> None:
    options = ("--max-updates", 3, "--log-every", 2)
    train(tmp_path, *options)
    checkpoint = load_checkpoint(tmp_path / "checkpoint_3.pt")
    for name in ("validation", "valid_loss", "valid_nll", "valid_ppl"):  # as after a signal in the last update
        del checkpoint.progress[name]
    window = {"loss": 2.5, "nll": 2.5, "target_tokens": 1, "tokens": 2, "padded_tokens": 2, "seconds": 1.0}
    checkpoint.progress |= {"window": window, "best": None}
    save_checkpoint(tmp_path / "checkpoint_3.pt", checkpoint)
    train(tmp_path, *options)
    rows = [(row["event"], row["update"]) for event in ("train", "valid") for row in metrics(tmp_path, event)]
    assert rows == [("train", 2), ("train", 3), ("valid", 3)]
    assert metrics(tmp_path, "train")[-1]["loss"] == 2.5


def test_the_logged_epoch_is_the_epoch_of_the_update(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-epochs", 2, "--batch-tokens", 100_000)  # an update each
    for event in ("train", "valid"):
        assert metrics(tmp_path, event)[-1]["epoch"] == 2
    assert [row["epoch"] for row in metrics(tmp_path, "train")] == [1, 2]
    assert "update 2 | epoch 2 |" in result.stderr.decode()
    assert load_checkpoint(tmp_path / "checkpoint_2.pt").progress["epoch"] == 3


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--max-tokens", 5],
            ["--max-tokens 5", "in split 'train'", "train, lines 1, ", "give at least"],
        ),
        (["--arch", "transformer_huge"], ["transformer_huge", "transformer_base"]),
        (["--d-model", 15, "--heads", 1], ["--d-model 15", "even"]),
        (["--d-ff", 10**19], ["--d-ff", "the maximum is 1000000"]),
        (["--attention-window", 10**19], ["--attention-window", "the maximum is 1000000"]),
        (["--heads", 3], ["--d-model 16 is not a multiple of --heads 3", "--d-k and --d-v"]),
        (["--dropout", 1], ["--dropout", "1.0 is too large"]),
        (["--d-model", "wide"], ["--d-model", "wide"]),
        (["--device", "abacus"], ["--device abacus"]),
        (["--positions", "learned", "--max-positions", 4], ["--max-positions 4", "give at least"]),
        (["--max-update", 5], ["--max-update"]),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(
    arguments: list[object], words: list[str], train: Train, tmp_path: Path
) -> None:
    refused(train(tmp_path / "run", *arguments, code=2), *words)
    assert not (tmp_path / "run").exists()


def test_fp16_is_refused_for_a_recurrent_model_on_a_cpu(
    run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    options = ("--arch", "lstm_small", "--d-model", 16, "--precision", "fp16", "--device", "cpu")
    result = run_here("nmt-train", datasets["joined"], *options, "--save-dir", tmp_path / "run")
    refused(result, "--precision fp16", "use bf16 or fp32")
    assert not (tmp_path / "run").exists()


def test_sharing_all_embeddings_is_refused_with_separate_vocabularies(
    train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    result = train(tmp_path / "run", "--share-embeddings", "all", dataset=datasets["separate"], code=2)
    refused(result, "--share-embeddings all", "--joined-vocab")


def test_options_that_need_a_validation_split_are_refused_without_one(
    train: Train, run_command: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    prefix = datasets["joined"].parent / "train"
    text = ("-s", "en", "-t", "de", "--trainpref", prefix, "--destdir", tmp_path / "data")
    run_command("nmt-preprocess", *text, "--vocab-size", 70)
    for asked in (("--valid-bleu",), ("--validate-epochs", 1), ("--patience", 3)):
        refused(train(tmp_path / "run", *asked, dataset=tmp_path / "data", code=2), asked[0], "--validpref")
    said = train(tmp_path / "run", "--max-updates", 2, dataset=tmp_path / "data").stderr.decode()
    assert "no split 'valid', so no validation and no best checkpoint" in said
    assert updates(tmp_path / "run") == [2]
    assert not metrics(tmp_path / "run", "valid")


@pytest.mark.parametrize("name", ["train.en.bin", "train.de.idx", "spm.model", "dataset.json"])
def test_a_dataset_with_one_byte_changed_is_refused(
    name: str, train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(datasets["joined"], tmp_path / "data")
    path = tmp_path / "data" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refused(train(tmp_path / "run", dataset=tmp_path / "data", code=2), str(path))
    assert not (tmp_path / "run").exists()


def test_a_missing_dataset_is_reported(train: Train, tmp_path: Path) -> None:
    refused(train(tmp_path / "run", dataset=tmp_path / "none", code=2), str(tmp_path / "none"), "nmt-preprocess")


def test_a_save_dir_that_cannot_be_created_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here already")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(train(folder, code=2), f"--save-dir {folder}")
    assert (tmp_path / "file").read_text() == "here already"


def test_resuming_from_checkpoints_of_another_model_is_refused(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused(train(tmp_path, "--d-ff", 32, code=2), str(tmp_path), "d_ff is 24, not 32", "another --save-dir")
    refused(train(tmp_path, "--norm", "pre", code=2), "norm is post, not pre")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("changed", "told"),
    [(("--dropout", 0.3), "dropout was 0.1, is 0.3"), (("--attention-window", 2), "attention_window was None, is 2")],
)
def test_a_run_resumes_with_a_different_dropout_or_attention_window(
    changed: tuple[object, ...], told: str, train: Train, tmp_path: Path
) -> None:
    for folder in ("changed", "unchanged"):
        train(tmp_path / folder, "--max-updates", 2)
    said = train(tmp_path / "changed", "--max-updates", 3, *changed).stderr.decode()
    train(tmp_path / "unchanged", "--max-updates", 3)
    assert f"options have changed since the checkpoint: {told}\n" in said
    model = load_checkpoint(tmp_path / "changed" / "checkpoint_3.pt").model_config.to_dict()
    assert model[str(changed[0])[2:].replace("-", "_")] == changed[1]
    ours, others = tensors(tmp_path / "changed"), tensors(tmp_path / "unchanged")
    assert not all(torch.equal(tensor, others[name]) for name, tensor in ours.items())
    assert "other options" not in train(tmp_path / "changed", "--max-updates", 4, *changed).stderr.decode()


def test_a_run_resumes_if_d_k_and_d_v_are_set_to_their_default_values(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 1)
    train(tmp_path, "--max-updates", 2, "--d-k", 8)
    train(tmp_path, "--max-updates", 3, "--d-v", 8)
    refused(train(tmp_path, "--d-k", 4, code=2), "d_k is 8, not 4")


def test_resuming_from_checkpoints_of_another_vocabulary_is_refused(
    train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 2, "--share-embeddings", "decoder")
    result = train(tmp_path, "--share-embeddings", "decoder", dataset=datasets["separate"], code=2)
    refused(result, "another vocabulary", str(datasets["separate"]), "its source vocabulary has")


def test_an_average_alone_in_the_save_dir_is_refused_with_the_remedy(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 1)
    save_checkpoint(tmp_path / "checkpoint_1.pt", average_checkpoints([tmp_path / "checkpoint_1.pt"]))
    (tmp_path / "checkpoint_last.pt").unlink()
    refused(train(tmp_path, code=2), "checkpoint_1.pt is an average or an import", "--init-from", "move it away")


def test_an_average_among_checkpoints_is_reported_and_renamed(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 1)
    save_checkpoint(tmp_path / "checkpoint_9.pt", average_checkpoints([tmp_path / "checkpoint_1.pt"]))
    said = train(tmp_path, "--max-updates", 2).stderr.decode()
    assert "checkpoint_9.pt is an average or an import" in said
    assert (tmp_path / "checkpoint_9.pt.unusable").exists()
    assert updates(tmp_path) == [1, 2]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_run_resumes_from_checkpoint_last_if_it_is_newest_and_intact(
    is_damaged: bool, train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 2, "--save-every", 1)
    (tmp_path / "checkpoint_2.pt").unlink()
    if is_damaged:
        damage(tmp_path / "checkpoint_last.pt")
    said = train(tmp_path, "--max-updates", 3).stderr.decode()
    assert f"resuming after update {1 if is_damaged else 2}" in said
    assert updates(tmp_path) == ([1, 3] if is_damaged else [1, 2, 3])


def test_a_dataset_is_refused_as_save_dir(train: Train, datasets: dict[str, Path]) -> None:
    before = sorted(datasets["joined"].iterdir())
    refused(train(datasets["joined"], code=2), f"--save-dir {datasets['joined']} is a dataset", "choose another")
    refused(train(datasets["joined"], "--dry-run", code=2), "is a dataset")
    assert sorted(datasets["joined"].iterdir()) == before


def test_a_refused_initial_checkpoint_leaves_no_save_dir(train: Train, tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "kept").mkdir()
    refused(train(tmp_path / "new/run", "--init-from", tiny_checkpoint, code=2), "--init-from")
    refused(train(tmp_path / "kept", "--init-from", tiny_checkpoint, code=2), "--init-from")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_an_epoch_planned_in_parts_resumes_at_its_position(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "PART", 100)  # of 240 pairs
    options = ("--validate-every", 1000, "--save-every", 1, "--keep-last", 99)
    train(tmp_path / "straight", *options, "--max-epochs", 2)
    places = {
        update: [
            load_checkpoint(path).progress[name] for name in ("epoch", "part", "updates_in_part", "updates_in_epoch")
        ]
        for update, path in list_checkpoints(tmp_path / "straight")
    }
    assert {part for _, part, _, _ in places.values()} == {0, 1, 2}
    assert places[max(places)] == [3, 0, 0, 0]
    for stop in (3, 5):
        train(tmp_path / "stopped", *options, "--max-updates", stop)
    train(tmp_path / "stopped", *options, "--max-epochs", 2)
    straight = tensors(tmp_path / "straight", "checkpoint_last.pt")
    stopped = tensors(tmp_path / "stopped", "checkpoint_last.pt")
    assert all(torch.equal(tensor, stopped[name]) for name, tensor in straight.items())


def test_updates_of_an_epoch_cut_short_by_a_larger_batch_size_do_not_count_in_the_next(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 4)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress["epoch"] == 1
    train(tmp_path, "--max-updates", 5, "--batch-tokens", 1000)  # an epoch has three of them
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert [progress[name] for name in ("epoch", "updates_in_part", "updates_in_epoch")] == [2, 1, 1]


def test_a_diverging_run_stops_with_intact_checkpoints(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = UpdateGradient._backward

    def backward(self: UpdateGradient, update: int, piece: Any, *arguments: Any) -> Tensor:
        sums = original(self, update, piece, *arguments)
        gradient = next(self.loss.parameters()).grad
        if update > 3 and gradient is not None:
            gradient.fill_(float("nan"))
        return sums

    monkeypatch.setattr(UpdateGradient, "_backward", backward)
    result = train(tmp_path, "--max-updates", 50, "--save-every", 1, "--max-skips", 3, code=1)
    messages = result.stderr.decode().splitlines()
    assert sum("skipped" in line and "not finite" in line for line in messages) >= 3
    assert messages[-1].startswith("nmt-train: 3 updates in a row")
    assert "earlier checkpoints are intact" in messages[-1]
    assert "Traceback" not in result.stderr.decode()
    assert updates(tmp_path)[:3] == [1, 2, 3]
    assert all(torch.isfinite(t).all() for t in tensors(tmp_path, "checkpoint_3.pt").values())
    assert [row["loss"] for row in metrics(tmp_path, "train") if row["update"] > 3] == [None, None]


def test_an_absurd_learning_rate_ends_with_exit_code_1(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-updates", 50, "--lr-scale", 1e38, "--max-skips", 3, code=1)
    (*_, error) = result.stderr.decode().splitlines()
    assert error.startswith("nmt-train: 3 updates in a row")
    assert "the run has diverged; it has no earlier checkpoint" in error


def test_a_full_disk_ends_with_exit_code_1_and_keeps_the_old_checkpoints(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, "--max-updates", 2)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:860] . PytorchStreamWriter failed writing file data/0")

    monkeypatch.setattr(torch, "save", fail)
    result = train(tmp_path, "--max-updates", 4, code=1)
    assert f"nmt-train: cannot write {tmp_path / 'checkpoint_4.pt'}" in result.stderr.decode()
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress["update"] == 2


# As a process of its own


@pytest.mark.slow
def test_training_runs_under_torchrun(datasets: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 1, BIN / "nmt-train"]
    command += [datasets["joined"], "--save-dir", tmp_path, *TINY, "--max-updates", 2]
    done = subprocess.run([str(word) for word in command], capture_output=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert updates(tmp_path) == [2]


def test_errors_have_a_traceback_only_if_requested(train: Train, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"dataset": tmp_path / "none", "code": 2}
    assert b"Traceback" not in train(tmp_path / "run", **arguments).stderr
    assert b"Traceback" in train(tmp_path / "run", "--debug", **arguments).stderr


def test_a_save_dir_in_use_by_another_run_is_refused(train: Train, tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        refused(train(tmp_path, code=2), "another process is training in it")
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    ("idle", "reason"),
    [
        (("--lr", "1e-3"), "with --lr-schedule paper"),
        (("--lr-schedule", "constant", "--lr-scale", "2"), "with --lr-schedule constant"),
        (("--max-positions", "600"), "with --positions sinusoidal"),
        (("--valid-beam", "4"), "without --valid-bleu"),
    ],
)
def test_an_option_without_effect_is_refused(train: Train, tmp_path: Path, idle: tuple[str, ...], reason: str) -> None:
    refused(train(tmp_path, *idle, code=2), f"{idle[-2]} has no effect {reason}")


@pytest.mark.parametrize(
    ("in_file", "given", "expected"),
    [
        ({"mix": "4,1"}, ("--mix-temperature", 2), {"mix": None, "mix_temperature": 2}),
        ({"mix_temperature": 2}, ("--mix", "4,1"), {"mix": "4,1", "mix_temperature": None}),
        ({"valid_bleu": True, "valid_beam": 2}, ("--no-valid-bleu",), {"valid_bleu": False, "valid_beam": 1}),
        (
            {"lr_schedule": "constant", "lr": 0.1},
            ("--lr-schedule", "paper"),
            {"lr_schedule": "paper", "lr": 5e-4},
        ),
        (
            {"lr_schedule": "paper", "lr_scale": 2.0},
            ("--lr-schedule", "constant"),
            {"lr_schedule": "constant", "lr_scale": 1.0},
        ),
        (
            {"positions": "learned", "max_positions": 300},
            ("--positions", "sinusoidal"),
            {"positions": "sinusoidal", "max_positions": 512},
        ),
        (
            {"lora_rank": 4, "lora_alpha": 2, "lora_targets": ["*"]},
            ("--lora-rank", 0),
            {"lora_rank": 0, "lora_alpha": None, "lora_targets": []},
        ),
        (
            {"validate_epochs": 5, "save_epochs": 3},
            ("--max-epochs", 2),
            {"max_epochs": 2, "validate_epochs": None, "save_epochs": None},
        ),
    ],
)
def test_an_option_of_the_command_line_wins_over_one_of_the_file_that_it_excludes(
    in_file: dict[str, Any],
    given: tuple[Any, ...],
    expected: dict[str, Any],
    train: Train,
    other_validation: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "options.json").write_text(json.dumps(in_file))
    options = ("--config", tmp_path / "options.json", "--max-updates", 1)
    others = [other_validation] if "mix" in expected else []
    train(tmp_path / "run", *others, *options, *given)
    groups = json.loads((tmp_path / "run/options.json").read_text())
    written = {name: value for group in groups.values() for name, value in group.items()}
    assert {name: written[name] for name in expected} == expected


def test_an_architecture_of_the_command_line_wins_over_options_of_the_file_that_it_excludes(
    run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "options.json").write_text('{"arch": "transformer_base", "heads": 4, "lr_scale": 2, "d_model": 16}')
    run = tmp_path / "run"
    options = ("--config", tmp_path / "options.json", "--save-dir", run, "--max-updates", 1, "--device", "cpu")
    result = run_here("nmt-train", datasets["joined"], *options, "--arch", "lstm_small")
    assert result.returncode == 0, result.stderr.decode()
    written = json.loads((run / "options.json").read_text())
    assert written["model"]["arch"] == "gnmt"
    assert written["model"]["d_model"] == 16
    assert "heads" not in written["model"]
    assert written["optimizer"]["lr_scale"] == 1


def test_the_schedule_of_an_architecture_of_the_command_line_wins_over_the_rate_of_the_file(
    run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "options.json").write_text('{"arch": "lstm_small", "lr": 0.1, "d_model": 16}')
    run = tmp_path / "run"
    options = ("--config", tmp_path / "options.json", "--save-dir", run, "--max-updates", 1, "--device", "cpu")
    result = run_here("nmt-train", datasets["joined"], *options, "--arch", "transformer_tiny")
    assert result.returncode == 0, result.stderr.decode()
    written = json.loads((run / "options.json").read_text())["optimizer"]
    assert (written["lr_schedule"], written["lr"]) == ("paper", 5e-4)


def test_the_model_of_init_from_wins_over_options_of_the_file_that_it_excludes(
    train: Train, run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(tmp_path / "first", "--max-updates", 1)
    (tmp_path / "options.json").write_text('{"separate_output": true, "d_bottleneck": 8}')  # the default, and another
    options = ("--config", tmp_path / "options.json", "--save-dir", tmp_path / "run", "--max-updates", 1)
    initial = ("--init-from", tmp_path / "first/checkpoint_last.pt")
    result = run_here("nmt-train", datasets["joined"], *options, *initial, "--device", "cpu")
    assert result.returncode == 0, result.stderr.decode()
    written = json.loads((tmp_path / "run/options.json").read_text())["model"]
    assert written["d_model"] == 16
    assert "d_bottleneck" not in written


def test_options_that_were_removed_name_their_successor_and_may_stay_in_the_options_of_a_run(
    train: Train, tmp_path: Path
) -> None:
    refused(train(tmp_path / "run", "--reset-optimizer", code=2), "--init-from")
    refused(train(tmp_path / "run", "--activation", "gelu", code=2), "--config")
    options = {"model": {"activation": "gelu"}, "checkpoints": {"max_save_failures": 3}}
    (tmp_path / "options.json").write_text(json.dumps(options))
    train(tmp_path / "run", "--config", tmp_path / "options.json", "--max-updates", 1)
    assert json.loads((tmp_path / "run/options.json").read_text())["model"]["activation"] == "gelu"


def test_a_file_with_options_that_exclude_each_other_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"lr_schedule": "constant", "lr_scale": 2}')
    refused(train(tmp_path / "run", "--config", tmp_path / "options.json", code=2), "--lr-scale has no effect")


def test_the_options_file_of_a_run_is_a_valid_config_file(
    train: Train, run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(run, "--max-updates", 1, "--lr-schedule", "constant", "--lr", 1e-3, "--freeze", "encoder.*")
    written = json.loads((run / "options.json").read_text(encoding="utf-8"))
    (tmp_path / "options.json").write_text(json.dumps(written), encoding="utf-8")
    for file in run.iterdir():
        file.unlink()
    again = run_here("nmt-train", datasets["joined"], "--config", tmp_path / "options.json")
    assert again.returncode == 0, again.stderr.decode()
    assert json.loads((run / "options.json").read_text(encoding="utf-8")) == written
    assert updates(run) == [1]
    run_here("nmt-train", datasets["joined"], "--config", tmp_path / "options.json", "--max-updates", 2)
    assert updates(run) == [1, 2]


def test_resuming_with_other_training_text_is_refused(
    train: Train, datasets: dict[str, Path], run_command: Run, tmp_path: Path
) -> None:
    train(tmp_path / "run", "--max-updates", 1)
    for language in ("en", "de"):
        (tmp_path / f"other.{language}").write_text("a dog\na cat\n" * 5, encoding="utf-8")
    other = ("--trainpref", tmp_path / "other", "--destdir", tmp_path / "data", "--vocab-from", datasets["joined"])
    made = run_command("nmt-preprocess", "-s", "en", "-t", "de", *map(str, other))
    assert made.returncode == 0, made.stderr
    refused(train(tmp_path / "run", "--max-updates", 2, dataset=tmp_path / "data", code=2), "a run on other data")


def test_resuming_with_the_opposite_language_direction_is_refused(
    train: Train, datasets: dict[str, Path], run_command: Run, tmp_path: Path
) -> None:
    """With a joined vocabulary, its dataset has the same files."""
    train(tmp_path / "run", "--max-updates", 1)
    forth = datasets["joined"]
    names = {f"--{name}pref": forth.parent / name for name in ("train", "valid")}
    files = [str(word) for pair in names.items() for word in pair]
    back = ("-s", "de", "-t", "en", *files, "--destdir", str(tmp_path / "back"), "--vocab-from", str(forth))
    assert run_command("nmt-preprocess", *back).returncode == 0
    assert Dataset.open(tmp_path / "back").checksums("train") == Dataset.open(forth).checksums("train")
    refused(train(tmp_path / "run", "--max-updates", 2, dataset=tmp_path / "back", code=2), "a run on other data")


@pytest.mark.parametrize("name", ["metrics.jsonl", "options.json"])
@pytest.mark.parametrize("kind", ["symlink", "dangling", "pipe", "folder"])
def test_metrics_and_options_are_not_written_to_a_link_pipe_or_folder(
    name: str, kind: str, train: Train, tmp_path: Path
) -> None:
    save_dir, thesis = tmp_path / "run", tmp_path / "thesis"
    save_dir.mkdir()
    if kind == "pipe":
        os.mkfifo(save_dir / name)
    elif kind == "folder":
        (save_dir / name).mkdir()
    else:
        (save_dir / name).symlink_to(thesis)
    if kind == "symlink":
        thesis.write_text("precious")
    found = "not a file" if kind in ("pipe", "folder") else "a symlink"
    refused(train(save_dir, "--max-updates", 1, "--quiet", code=2), f"{name} is {found}: remove it")
    assert thesis.exists() == (kind == "symlink")
    assert kind != "symlink" or thesis.read_text() == "precious"


def test_a_checkpoint_named_after_another_update_is_reported_and_skipped(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2, "--save-every", 1)
    shutil.copy(tmp_path / "checkpoint_1.pt", tmp_path / "checkpoint_9.pt")
    said = train(tmp_path, "--max-updates", 3, "--quiet").stderr.decode()
    assert "checkpoint_9.pt: its content is of update 1; trying the previous checkpoint" in said
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress["update"] == 3


def test_a_pipe_with_the_name_of_a_checkpoint_counts_as_a_failed_save(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 1)
    os.mkfifo(tmp_path / "checkpoint_2.pt")
    done = train(tmp_path, "--max-updates", 3, "--save-every", 1, "--quiet")
    assert "checkpoint_2.pt is not a file" in done.stderr.decode()
    assert load_checkpoint(tmp_path / "checkpoint_last.pt").progress["update"] == 3


@pytest.mark.parametrize("name", ["checkpoint_last.pt", "checkpoint_best.pt"])
def test_a_folder_named_like_a_checkpoint_link_is_refused_before_the_first_update(
    name: str, train: Train, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    refused(train(tmp_path, "--max-updates", 1, "--quiet", code=2), f"{name} is a folder")
    assert not (tmp_path / "metrics.jsonl").exists()
