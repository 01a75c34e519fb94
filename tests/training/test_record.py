"""Resuming from checkpoints whose training state is forged, or of another version of data order and schedule."""

import copy
import math
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import TINY, Run, Train

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.data.batching import ORDER_VERSION
from nmtkit.errors import UserError
from nmtkit.training import record
from nmtkit.training.config import CheckpointConfig, StopConfig, TrainingOptions
from nmtkit.training.loss import LOSS_VERSION, perplexity
from nmtkit.training.optim import SCHEDULE_VERSION
from nmtkit.training.record import check_record
from nmtkit.training.state import RunState, Window

FP16 = torch.amp.GradScaler("cpu").state_dict()
PATH = Path("checkpoint_7.pt")
STOPPED = ("--max-updates", 4, "--validate-every", 3, "--log-every", 3)  # in the first epoch, within a window
RESUMED = ("--max-updates", 6, "--validate-every", 3, "--log-every", 3)

RECORD: dict[str, Any] = {
    **asdict(RunState(update=7, epoch=2, updates_in_part=3, updates_in_epoch=3, minutes=0.5, best=2.5)),
    "window": asdict(Window(1.0, 1.0, 10, 20, 30, 1.0)),
    "best_metric": "valid_loss",
    "checkpoint_validations": [[3, 2.5], [6, 2.75]],
    "options": {"batches": {"seed": 1}, "optimizer": {"lr_schedule": "paper"}},
}
TOKENS: list[Any] = [None, "x", -1, 1.5, True]
PACKING: list[Any] = [None, "auto", [], {}]
BATCHES: list[Any] = [0, "max_tokens", ["max_tokens"]]
BATCHES += [*({"max_tokens": value} for value in TOKENS), *({"packing": value} for value in PACKING)]
FORGED: dict[str, list[Any]] = {
    "update": [-1, 1.5, "7", None, True, [7], {}, 1e300, 2**200, float("nan"), 2],
    "epoch": [0, -3, 9, 10**30, "2", None],
    "part": [-1, 4, 10**30, 0.0],
    "updates_in_part": [-1, 4, 2**63],
    "updates_in_epoch": [-1, 2, 8],
    "others": [None, {}, [[1, 0, 0]], [[0, 0, 0, 0.0]], [[1, 0, -1, 0.0]], [[1, 0, 0, -1.0]], [[1, 0, 0, 1e300]]],
    "other_data": [None, {}, [1], [{"a": 1}]],
    "schedule_start": [-1, 8],
    "minutes": [-1.0, float("inf"), "1", None],
    "best": ["2.5", [], float("nan"), -1],
    "validation": [None, [], {"valid_loss": "2"}],
    "window": [None, [], {"seconds": "1"}, {"padded_tokens": 3}, {"loss": None}, {"datasets": {"a": [1.0]}}],
    "scaler": [1, {"scale": "65536"}, {"scale": float("inf")}],
    "memory_limits": [[], {"x": 1}, {"8": -1}, {"8": "1"}],
    "checkpoint_validations": [None, {}, [[1]], [[1, "2"]], [["1", 2.0]], [[[], 2.0]]],
    "options": [None, [], {"batches": None}, {"optimizer": [1]}, *({"batches": batches} for batches in BATCHES)],
    "best_metric": [None, 1, ["valid_loss"]],
    "data_order_version": [-1, "1", None, 1.0],
    "schedule_version": [-1, "1", None, 1.0],
    "loss_version": [-1, "1", None, 1.0],
}


def test_records_of_this_older_and_newer_versions_are_accepted() -> None:
    check_record(RECORD, PATH)
    check_record({**RECORD, "of_a_newer_version": 1}, PATH)
    for name in RECORD.keys() - {"update", "updates_in_epoch", "best_metric", "checkpoint_validations", "options"}:
        check_record({key: value for key, value in RECORD.items() if key != name}, PATH)


def test_a_record_of_a_bad_model_is_accepted() -> None:
    """A learning rate that is far too high gives such values."""
    largest = torch.finfo(torch.float32).max
    for nll in (69.5, 87.9, 88.0):
        values = {"valid_loss": nll, "valid_nll": nll, "valid_ppl": None if nll == 88 else perplexity(nll)}
        window = {**RECORD["window"], "gradient_norm": largest}
        check_record({**RECORD, "validation": values, "window": window}, PATH)
    assert perplexity(88.0) == math.inf


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FORGED.items() for value in values])
def test_a_forged_record_is_refused_and_its_field_named(name: str, value: Any) -> None:
    named = rf"^checkpoint_7\.pt: .* ({name}|epoch|updates_in_\w+)\b"  # with fewer updates others are impossible
    with pytest.raises(UserError, match=named):
        check_record({**RECORD, name: value}, PATH)


@pytest.mark.parametrize("name", ["update", "best_metric", "checkpoint_validations", "options"])
def test_a_record_without_a_required_field_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"has no {name}"):
        check_record({key: value for key, value in RECORD.items() if key != name}, PATH)


@pytest.mark.parametrize(
    ("checkpoints", "update", "counts"),
    [
        (CheckpointConfig(save_every=5, save_minutes=0), 10, True),
        (CheckpointConfig(save_every=5, save_minutes=0), 11, False),
        (CheckpointConfig(save_every=5, save_minutes=0), 12, True),  # with a validation
        (CheckpointConfig(save_every=5, save_minutes=0), 13, True),  # the last update
        (CheckpointConfig(save_every=5, save_minutes=10), 11, True),
        (CheckpointConfig(save_every=5, save_epochs=1), 10, True),
        (CheckpointConfig(save_every=5, save_epochs=1), 12, False),
        (CheckpointConfig(save_every=5, save_epochs=1), 13, False),
    ],
)
def test_the_checkpoints_that_count_are_those_of_a_run_without_interruptions(
    checkpoints: CheckpointConfig, update: int, counts: bool
) -> None:
    state = RunState(update=update, updates_in_epoch=update, validation={"valid_loss": 1.0} if update == 12 else {})
    options = TrainingOptions(checkpoints=checkpoints, stop=StopConfig(max_updates=13))
    assert record.is_interim(state, "valid_loss", options) is not counts


@pytest.fixture
def stopped(train: Train, tmp_path: Path) -> Path:
    """The save folder of a run that was stopped within an epoch and between two log lines."""
    train(tmp_path / "run", *STOPPED)
    return tmp_path / "run"


def rewrite(folder: Path, change: Callable[[Checkpoint], object], update: int = 4) -> None:
    """Change a checkpoint; its checksum is right."""
    checkpoint = load_checkpoint(folder / f"checkpoint_{update}.pt")
    change(checkpoint)
    save_checkpoint(folder / f"checkpoint_{update}.pt", checkpoint)


def test_a_checkpoint_with_a_forged_record_is_reported_and_the_one_before_it_used(train: Train, stopped: Path) -> None:
    train(stopped.parent / "straight", *RESUMED)
    rewrite(stopped, lambda checkpoint: checkpoint.progress.update(update=-1))
    messages = train(stopped, *RESUMED).stderr.decode()
    assert re.search(r"warning: \S*checkpoint_4\.pt: .*update", messages)
    ours, theirs = (load_checkpoint(folder / "checkpoint_6.pt") for folder in (stopped, stopped.parent / "straight"))
    assert all(torch.equal(tensor, theirs.weights[name]) for name, tensor in ours.weights.items())


def odd_value(draw: random.Random) -> Any:
    return draw.choice(
        [None, True, -1, 0, 3, 10**6, 10**400, 0.5, 1e308, float("nan"), "", "x", [], [1], {}, {"a": []}]
    )


def test_forged_training_states_are_refused_in_one_line_or_harmless(
    run_here: Run, datasets: dict[str, Path], stopped: Path
) -> None:
    good = load_checkpoint(stopped / "checkpoint_4.pt").progress
    outcomes = set()
    for seed in range(20):
        draw, progress = random.Random(seed), copy.deepcopy(good)
        options = progress["options"]
        groups = [progress, progress["window"], options, options["batches"], *draw.sample([*options.values()], 3)]
        for group in draw.sample(groups, draw.randint(1, 2)):
            group[draw.choice(sorted(group))] = odd_value(draw)
        folder = stopped.parent / f"forged-{seed}"
        folder.mkdir()
        checkpoint = load_checkpoint(stopped / "checkpoint_4.pt")
        save_checkpoint(folder / "checkpoint_4.pt", replace(checkpoint, progress=progress))
        result = run_here("nmt-train", datasets["joined"], "--save-dir", folder, *TINY, *RESUMED)
        outcomes.add(result.returncode)
        if result.returncode == 2:
            *_, line = result.stderr.decode().splitlines()
            assert line.startswith("nmt-train: "), seed
    assert outcomes == {0, 2}


def test_a_checkpoint_whose_optimizer_state_does_not_fit_is_skipped(train: Train, stopped: Path) -> None:
    name = "exp_avg_sq.encoder.0.feed_forward.inner.bias"
    rewrite(stopped, lambda checkpoint: (checkpoint.optimizer or {}).update({name: torch.zeros(23)}))
    said = train(stopped, *RESUMED).stderr.decode()
    assert f"checkpoint_4.pt: the optimizer's state does not fit the model: {name} is float32 [23]; trying" in said


@pytest.mark.parametrize("name", ["other", "decoder.0.feed_forward.inner.bias"])
def test_a_checkpoint_whose_averages_do_not_fit_is_skipped(name: str, train: Train, tmp_path: Path) -> None:
    train(tmp_path, *STOPPED, "--ema", 0.9)
    rewrite(tmp_path, lambda checkpoint: (checkpoint.ema or {}).update({name: torch.zeros(3)}))
    said = train(tmp_path, *STOPPED, "--ema", 0.9).stderr.decode()
    assert re.search(rf"the weights do not fit the model: {re.escape(name)} .*; trying the previous checkpoint", said)


def test_a_position_beyond_the_parts_of_an_epoch_is_refused(train: Train, stopped: Path) -> None:
    rewrite(stopped, lambda checkpoint: checkpoint.progress.update(part=1))
    assert "in part 2 of an epoch of 1 part" in train(stopped, *RESUMED, code=2).stderr.decode().splitlines()[-1]


@pytest.mark.parametrize("scaling", [{"scale": 2.0}, {**FP16, "_growth_tracker": 1.5}, {**FP16, "scale": 2}])
def test_a_damaged_loss_scaler_state_is_refused(scaling: dict[str, float], train: Train, tmp_path: Path) -> None:
    options = (*STOPPED, "--precision", "fp16")
    train(tmp_path, *options)
    rewrite(tmp_path, lambda checkpoint: checkpoint.progress.update(scaler=scaling))
    assert "damaged loss scaling" in train(tmp_path, *options, code=2).stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(("versions", "words"), [({}, "version 1"), ({"data_order_version": 99}, "version 99")])
def test_resuming_with_another_data_order_warns(
    versions: dict[str, int], words: str, train: Train, stopped: Path
) -> None:
    def change(checkpoint: Checkpoint) -> None:
        assert checkpoint.progress.pop("data_order_version") == ORDER_VERSION
        checkpoint.progress |= versions

    rewrite(stopped, change)
    (line,) = warnings(train(stopped, *RESUMED))
    assert f"data order is version {ORDER_VERSION}, the checkpoint has {words}" in line
    assert "the rest of epoch 1 may repeat some sentence pairs" in line
    assert warnings(train(stopped, *RESUMED)) == []  # the checkpoints are of this version now


def test_resuming_with_another_version_of_the_loss_warns_once(train: Train, stopped: Path) -> None:
    rewrite(stopped, partial(forget, name="loss_version"))
    discarded, version = warnings(train(stopped, *RESUMED))
    assert "valid_loss is computed by another version of the loss: the previous best result is discarded" in discarded
    assert f"the loss is version {LOSS_VERSION}, the checkpoint has version 1" in version
    assert warnings(train(stopped, *RESUMED)) == []


def test_values_of_another_label_smoothing_do_not_count_for_the_best_checkpoint(train: Train, stopped: Path) -> None:
    before = load_checkpoint(stopped / "checkpoint_last.pt").progress
    assert before["best_metric"] == "valid_loss"
    said = train(stopped, *RESUMED, "--label-smoothing", 0.6).stderr.decode()
    assert "valid_loss depends on --label-smoothing, which has changed: the previous best result is discarded" in said
    after = load_checkpoint(stopped / "checkpoint_last.pt").progress
    assert after["best"] > before["best"]  # more smoothing, more loss
    assert min(update for update, _ in after["checkpoint_validations"]) > before["update"]


def warnings(result: Any) -> list[str]:
    return [line for line in result.stderr.decode().splitlines() if "warning: " in line and "warmup" not in line]


def forget(checkpoint: Checkpoint, name: str) -> None:
    del checkpoint.progress[name]


def test_resuming_at_the_start_of_an_epoch_does_not_warn_of_repeated_sentence_pairs(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path, "--max-epochs", 1)
    update = load_checkpoint(tmp_path / "checkpoint_last.pt").progress["update"]
    rewrite(tmp_path, lambda checkpoint: checkpoint.progress.pop("data_order_version"), update)
    (line,) = warnings(train(tmp_path, "--max-epochs", 2))
    assert "batches differ" in line
    assert "repeat" not in line


@pytest.mark.parametrize("option", ["--reset-progress", "--reset-lr-schedule"])
def test_a_reset_silences_the_warning_that_it_makes_obsolete(option: str, train: Train, stopped: Path) -> None:
    schedule = ("--lr-schedule", "linear")
    shutil.rmtree(stopped)
    train(stopped, *STOPPED, *schedule)
    for name in ("data_order_version", "schedule_version"):
        rewrite(stopped, partial(forget, name=name))
    lines = " ".join(warnings(train(stopped, *STOPPED[:1], 6, *STOPPED[2:], *schedule, option)))
    assert ("data order" in lines) == (option == "--reset-lr-schedule")
    assert ("--lr-schedule" in lines) == (option == "--reset-progress")


@pytest.mark.parametrize("schedule", ["linear", "cosine", "paper", "constant"])
def test_resuming_with_another_version_of_a_falling_schedule_warns(schedule: str, train: Train, tmp_path: Path) -> None:
    train(tmp_path, *STOPPED, "--lr-schedule", schedule)
    rewrite(tmp_path, lambda checkpoint: checkpoint.progress.pop("schedule_version"))
    lines = [line for line in warnings(train(tmp_path, *RESUMED, "--lr-schedule", schedule)) if "version" in line]
    expected = f"--lr-schedule {schedule} is version {SCHEDULE_VERSION}, the checkpoint has version 1"
    assert [expected in line for line in lines] == [True] * (schedule in ("linear", "cosine"))
