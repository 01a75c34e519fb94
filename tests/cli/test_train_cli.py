"""nmt-train through the real command: what it writes, that it goes on as if never stopped, and how it refuses."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Run, Train
from torch import Tensor
from training_runs import DROPOUT, TIMES, assert_same_end, metrics, refused, tensors, updates

from nmtkit.checkpoint import load_checkpoint, save_checkpoint
from nmtkit.data import batching
from nmtkit.data.batch import Batch
from nmtkit.data.corpus import Dataset
from nmtkit.storage.run_files import list_checkpoints
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


def test_minutes_between_checkpoints_and_before_a_resume_count(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2, "--save-minutes", 1e-9)
    assert updates(tmp_path) == [1, 2]
    checkpoint = load_checkpoint(tmp_path / "checkpoint_2.pt", merge=False)
    checkpoint.progress["minutes"] = 600.0
    save_checkpoint(tmp_path / "checkpoint_2.pt", checkpoint)
    train(tmp_path, "--max-updates", 9, "--max-minutes", 600 + 1e-9)
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert (progress["update"], progress["minutes"] > 600) == (3, True)


def test_the_same_command_gives_the_same_weights_with_any_number_of_data_workers(train: Train, tmp_path: Path) -> None:
    for workers in (0, 1, 3):
        train(tmp_path / str(workers), "--max-updates", 4, "--num-workers", workers)
        assert_same_end(tmp_path / str(workers), tmp_path / "0")
    train(tmp_path / "seed", "--max-updates", 4, "--seed", 2)
    assert any(not np.array_equal(t, tensors(tmp_path / "0")[name]) for name, t in tensors(tmp_path / "seed").items())


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


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # its other names keep what they have
    path.write_bytes(content)


def test_memory_limit_learned_from_out_of_memory_errors_survive_a_resume(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = MicroBatchLoss.forward

    def limited(self: MicroBatchLoss, batch: Batch) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and len(batch.src) > 12:
            raise MemoryError
        return forward(self, batch)

    monkeypatch.setattr(MicroBatchLoss, "forward", limited)
    for folder, ends in (("stopped", (3, 5)), ("straight", (5,))):
        for end in ends:
            train(tmp_path / folder, "--max-updates", end, "--validate-every", 3)
    assert_same_end(tmp_path / "stopped", tmp_path / "straight")
    assert load_checkpoint(tmp_path / "stopped" / "checkpoint_3.pt").progress["memory_limit"]


def test_changing_the_metric_restarts_the_ranking_of_checkpoints(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 4, "--validate-every", 2)
    said = train(tmp_path, "--max-updates", 6, "--validate-every", 2, "--valid-bleu").stderr.decode()
    assert said.count("the metric has changed: the previous best result is discarded") == 1
    progress = load_checkpoint(tmp_path / "checkpoint_last.pt").progress
    assert progress["best"] == progress["valid_bleu"]
    assert [update for update, _ in progress["checkpoint_validations"]] == [4, 6]
    rows = metrics(tmp_path, "valid")
    assert [(row["update"], "valid_bleu" in row) for row in rows] == [(2, False), (4, True), (6, True)]


def test_all_changed_options_that_affect_the_run_are_reported_at_once(train: Train, tmp_path: Path) -> None:
    falling = ("--lr-schedule", "linear", "--warmup-updates", 1)
    train(tmp_path, "--max-updates", 2, *falling)
    changed = ("--batch-tokens", 500, "--clip-norm", 1, "--freeze", "encoder.*", "--precision", "bf16")
    said = train(tmp_path, "--max-updates", 4, *falling, *changed, "--log-every", 2).stderr.decode()
    assert (
        "options have changed since the checkpoint: batch_tokens was 400, is now 500; clip_norm was 0.0, is now 1.0; "
        "freeze was [], is now ['encoder.*']; max_updates was 2, is now 4; precision was fp32, is now bf16\n"
    ) in said


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
    train(tmp_path, "--max-updates", 5)  # a finished run is validated again
    assert len(metrics(tmp_path, "valid")) == 3
    progress = load_checkpoint(tmp_path / "checkpoint_5.pt").progress
    assert progress["valid_loss"] == progress["best"] == metrics(tmp_path, "valid")[-1]["valid_loss"]
    assert progress["validation_data"] != load_checkpoint(tmp_path / "checkpoint_4.pt").progress["validation_data"]


def test_a_run_resumes_with_another_dropout_or_attention_window(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 1)
    said = train(tmp_path, "--max-updates", 2, "--dropout", 0.3, "--attention-window", 2).stderr.decode()
    assert "options have changed since the checkpoint: " in said
    assert all(words in said for words in ("dropout was 0.1, is now 0.3", "attention_window was None, is now 2"))
    assert "max_updates was" not in said  # this schedule does not depend on it
    model = load_checkpoint(tmp_path / "checkpoint_2.pt").model_config.to_dict()
    assert (model["dropout"], model["attention_window"]) == (0.3, 2)


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", 5], ["--max-tokens 5", "split 'train'", "give at least"]),
        (["--arch", "transformer_huge"], ["transformer_huge", "transformer_base"]),
        (["--d-model", 15, "--heads", 1], ["--d-model 15", "even"]),
        (["--d-ff", 10**19], ["--d-ff", "the maximum is 1000000"]),
        (["--heads", 3], ["--d-model 16 is not a multiple of --heads 3", "--d-k and --d-v"]),
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


def test_a_save_dir_that_cannot_be_created_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here already")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(train(folder, code=2), f"--save-dir {folder}")
    assert (tmp_path / "file").read_text() == "here already"


def test_resuming_from_checkpoints_of_another_vocabulary_is_refused(
    train: Train, datasets: dict[str, Path], tmp_path: Path
) -> None:
    train(tmp_path, "--max-updates", 2, "--share-embeddings", "decoder")
    result = train(tmp_path, "--share-embeddings", "decoder", dataset=datasets["separate"], code=2)
    refused(result, "a different vocabulary", str(datasets["separate"]), "its source vocabulary has")


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
    assert all(np.array_equal(tensor, stopped[name]) for name, tensor in straight.items())


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
    assert all(np.isfinite(t).all() for t in tensors(tmp_path, "checkpoint_3.pt").values())
    assert [row["loss"] for row in metrics(tmp_path, "train") if row["update"] > 3] == [None, None]


def test_a_run_that_diverges_before_its_first_checkpoint_says_that_it_has_none(train: Train, tmp_path: Path) -> None:
    result = train(tmp_path, "--max-updates", 50, "--lr-scale", 1e38, "--max-skips", 3, code=1)
    error = result.stderr.decode().splitlines()[-1]
    assert error.startswith("nmt-train: 3 updates in a row")
    assert "it has no earlier checkpoint" in error


# Options


@pytest.mark.parametrize(
    ("idle", "reason"),
    [
        (("--lr", "1e-3"), "with --lr-schedule paper"),
        (("--lr-schedule", "constant", "--lr-scale", "2"), "with --lr-schedule constant"),
        (("--valid-beam", "4"), "without --valid-bleu"),
    ],
)
def test_an_option_without_effect_is_refused(train: Train, tmp_path: Path, idle: tuple[str, ...], reason: str) -> None:
    refused(train(tmp_path, *idle, code=2), f"{idle[-2]} has no effect {reason}")


@pytest.mark.parametrize(
    ("in_file", "given", "expected"),
    [
        ({"mix_temperature": 2}, ("--mix", "4,1"), {"mix": "4,1", "mix_temperature": None}),
        ({"valid_bleu": True, "valid_beam": 2}, ("--no-valid-bleu",), {"valid_bleu": False, "valid_beam": 1}),
        ({"lr_schedule": "constant", "lr": 0.1}, ("--lr-schedule", "paper"), {"lr_schedule": "paper", "lr": 5e-4}),
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
    refused(train(tmp_path / "run", "--max-updates", 2, dataset=tmp_path / "back", code=2), "a run on different data")
