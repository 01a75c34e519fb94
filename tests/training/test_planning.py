"""--budget: the plan and its command, the result, and resuming."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run, Train

from nmtkit.checkpoint import load_checkpoint
from nmtkit.training import planning, trainer
from nmtkit.training.planning import RULES, Rule, rules_for
from nmtkit.training.trainer import Trainer

UPDATES = 12
COMMON = {"norm": "pre", "positions": "rotary", "lr_schedule": "linear"}
LINEAR = {**COMMON, "arch": "transformer_tiny", "lr": 1e-3, "dropout": 0.3}
SMALL = Rule(math.inf, 0, 2, LINEAR)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_SECONDS_TO_MEASURE", 0.0)
    monkeypatch.setattr(planning, "RULES", (SMALL,))


def options_of(folder: Path) -> dict[str, Any]:
    """The options that a run has recorded."""
    groups = json.loads((folder / "options.json").read_text())
    return {name: value for group in groups.values() for name, value in group.items()}


def weights(folder: Path, name: str = "checkpoint_last.pt") -> dict[str, Any]:
    return dict(load_checkpoint(folder / name).weights)


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_the_printed_command_trains_the_same_weights_as_the_plan(train: Train, run_here: Run, tmp_path: Path) -> None:
    log = train(tmp_path / "planned", "--budget", "10m", "--max-updates", UPDATES).stderr.decode()
    command = shlex.split(re.search(r"same as: (.*)", log)[1])  # type: ignore[index]
    command[command.index("--save-dir") + 1] = str(tmp_path / "explicit")
    assert run_here(*command).returncode == 0
    planned, explicit = options_of(tmp_path / "planned"), options_of(tmp_path / "explicit")
    assert {name for name in planned if planned[name] != explicit[name]} == {"budget", "save_dir"}
    assert planned["dropout"] == 0.3
    assert planned["norm"] == "pre"
    assert planned["positions"] == "rotary"
    assert planned["validate_every"] == 1  # of 12 updates, not of those that fit into 10 minutes
    assert equal(weights(tmp_path / "planned"), weights(tmp_path / "explicit"))


def test_the_last_line_names_the_better_of_the_average_and_the_best_checkpoint(train: Train, tmp_path: Path) -> None:
    files = set()
    for name, rate in (("rising", "1e-4"), ("diverging", "0.5")):
        log = train(tmp_path / name, "--budget", "10m", "--max-updates", UPDATES, "--lr", rate).stderr.decode()
        average, best = map(float, re.search(r"valid_loss: (\S+) of the average, (\S+) of the best", log).groups())  # type: ignore[union-attr]
        expected = tmp_path / name / ("averaged.pt" if average < best else "checkpoint_best.pt")
        assert log.splitlines()[-1].endswith(f"next: nmt-generate --checkpoint {expected} --input FILE --output FILE")
        assert expected.exists()
        assert (tmp_path / name / "averaged.pt").exists() == (average < best)
        files.add(expected.name)
    assert files == {"averaged.pt", "checkpoint_best.pt"}


def test_a_planned_run_resumes_with_its_plan_and_measures_nothing(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = ("--budget", "10m", "--lr-schedule", "constant", "--validate-every", 3)
    train(tmp_path / "straight", *constant, "--max-updates", UPDATES)
    train(tmp_path / "resumed", *constant, "--max-updates", UPDATES // 2)
    monkeypatch.setattr(Trainer, "measure", None)
    train(tmp_path / "resumed", *constant, "--max-updates", UPDATES)
    assert equal(weights(tmp_path / "straight"), weights(tmp_path / "resumed"))
    refused = train(tmp_path / "resumed", "--budget", "2h", code=2).stderr.decode()
    assert "contains a run that was started with --budget 10m" in refused


@pytest.mark.parametrize(("speed", "heads"), [(1e9, 8), (10.0, 4)])
def test_the_largest_model_is_chosen_that_passes_over_the_corpus_often_enough(
    speed: float, heads: int, train: Train, run_here: Run, datasets: dict[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    large = Rule(math.inf, 5, 10, {**LINEAR, "heads": 8, "batch_tokens": 400})
    monkeypatch.setattr(planning, "RULES", (large, SMALL))
    monkeypatch.setattr(Trainer, "measure", lambda self, seconds: speed)
    done = run_here("nmt-train", datasets["joined"], "--save-dir", tmp_path, "--budget", "1m", "--max-updates", 1)
    assert options_of(tmp_path)["heads"] == heads
    assert (options_of(tmp_path)["dropout"] < 0.3) == (heads == 4)  # the slow run has few passes
    assert ("10.0 passes over the corpus" in done.stderr.decode()) == (heads == 8)


def test_a_plan_for_adam_has_no_learning_rate_of_muon(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "RULES", (Rule(math.inf, 0, 2, {**LINEAR, "optimizer": "muon", "lr": 4e-3}),))
    train(tmp_path / "muon", "--budget", "10m", "--max-updates", 1)
    train(tmp_path / "adam", "--budget", "10m", "--max-updates", 1, "--optimizer", "adam")
    assert options_of(tmp_path / "muon")["lr"] == 4e-3
    assert options_of(tmp_path / "adam")["lr"] == 2e-3


def test_a_plan_leaves_what_a_given_architecture_sets(train: Train, tmp_path: Path) -> None:
    small = ("--d-model", 16, "--d-ff", 16, "--heads", 2, "--encoder-layers", 1)
    train(tmp_path, "--budget", "10m", "--max-updates", 1, "--arch", "student_tiny", *small)
    options = options_of(tmp_path)
    assert (options["positions"], options["norm"], options["d_model"]) == ("marian", "post", 16)
    assert options["lr_schedule"] == "linear"


def test_the_rules_cover_corpora_of_all_sizes() -> None:
    for pairs in (1, 5_000, 5_001, 10**12):
        *larger, last = rules_for(pairs)
        assert pairs <= last.pairs
        assert last.least == 0
        assert all(rule.least > 0 for rule in larger)
    assert [rule.pairs for rule in RULES] == sorted(rule.pairs for rule in RULES)


@pytest.mark.parametrize("budget", ["10", "0h", "1w", "-1h", "1h30m"])
def test_a_malformed_budget_is_refused(budget: str, train: Train, tmp_path: Path) -> None:
    assert f"--budget {budget} is not a time" in train(tmp_path, "--budget", budget, code=2).stderr.decode()
