"""Runs that begin with given weights, freeze some of them, or resume with other data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Run, Train
from training_runs import metrics, refused, tensors

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.training.fine_tuning import freeze

SMALL = TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, heads=2)


@pytest.fixture
def parent(train: Train, tmp_path: Path) -> Path:
    """The last checkpoint of a run of six updates."""
    train(tmp_path / "parent", "--max-updates", 6)
    return tmp_path / "parent" / "checkpoint_last.pt"


def last(folder: Path) -> Checkpoint:
    return load_checkpoint(folder / "checkpoint_last.pt")


# --init-from


def test_a_run_initialized_from_a_checkpoint_takes_its_weights_and_search_settings_alone(
    train: Train, parent: Path, tmp_path: Path
) -> None:
    save_checkpoint(parent, replace(load_checkpoint(parent), search={"beam": 2}))
    tiny_steps = ("--lr-scale", 1e-9, "--dropout", 0.4)
    result = train(tmp_path / "run", "--max-updates", 1, "--init-from", parent, *tiny_steps)
    assert f"initial weights: {parent}" in result.stderr.decode()
    given, checkpoint = load_checkpoint(parent), last(tmp_path / "run")
    for name, weight in checkpoint.weights.items():
        np.testing.assert_allclose(weight, given.weights[name], rtol=0, atol=1e-7)
    assert (checkpoint.progress["update"], checkpoint.progress["epoch"]) == (1, 1)
    assert checkpoint.optimizer is not None
    assert {float(t) for name, t in checkpoint.optimizer.items() if name.startswith("step.")} == {1.0}
    assert checkpoint.model_config.to_dict()["dropout"] == 0.4
    train(tmp_path / "run", "--max-updates", 2, "--init-from", parent, *tiny_steps)  # resumes
    assert [each.search for each in (checkpoint, last(tmp_path / "run"))] == [{"beam": 2}] * 2


PLAIN = (
    "--batch-tokens",
    400,
    "--max-tokens",
    200,
    "--threads",
    1,
    "--device",
    "cpu",
    "--precision",
    "fp32",
    "--quiet",
)


@pytest.mark.parametrize("arch", [(), ("--arch", "lstm_small", "--d-model", 16)])
def test_model_options_that_are_not_given_are_those_of_the_initial_model(
    arch: tuple[str, ...], train: Train, run_here: Run, datasets: dict[str, Path], tmp_path: Path
) -> None:
    if arch:
        words = (datasets["joined"], "--save-dir", tmp_path / "parent", *arch, *PLAIN, "--max-updates", 1)
        assert run_here("nmt-train", *words).returncode == 0
    else:
        train(tmp_path / "parent", "--max-updates", 1, "--norm", "pre", "--heads", 4)
    given = tmp_path / "parent" / "checkpoint_last.pt"
    (tmp_path / "file.json").write_text('{"separate_output": true, "d_bottleneck": 8}')  # of a recurrent model
    file = () if arch else ("--config", tmp_path / "file.json")
    words = (datasets["joined"], "--save-dir", tmp_path / "run", *PLAIN, *file, "--init-from", given, "--dropout", 0.4)
    done = run_here("nmt-train", *words, "--max-updates", 1)
    assert done.returncode == 0, done.stderr.decode()
    expected = replace(load_checkpoint(given).model_config, dropout=0.4)  # type: ignore[call-arg]
    assert last(tmp_path / "run").model_config == expected
    given.unlink()  # no longer needed: the run has its own checkpoints
    done = run_here("nmt-train", *words, "--max-updates", 2)
    assert done.returncode == 0, done.stderr.decode()
    assert last(tmp_path / "run").progress["update"] == 2


def test_an_interrupted_run_resumes_from_its_own_checkpoints_and_says_so(
    train: Train, parent: Path, tmp_path: Path
) -> None:
    for folder, ends in (("straight", (6,)), ("stopped", (3, 6))):
        for end in ends:
            result = train(tmp_path / folder, "--max-updates", end, "--init-from", parent)
    ours, theirs = tensors(tmp_path / "stopped"), tensors(tmp_path / "straight")
    assert all(np.array_equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert f"--init-from {parent} is ignored" in result.stderr.decode()
    parent.unlink()  # nor is it needed
    train(tmp_path / "stopped", "--max-updates", 7, "--init-from", parent)


def test_weights_of_another_model_are_refused_with_both_values(train: Train, parent: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--max-updates", 1, "--init-from", parent, "--heads", 4, code=2)
    refused(result, f"--init-from {parent}: ", "its heads is 2, not 4")


def test_weights_for_another_vocabulary_are_refused(
    train: Train, datasets: dict[str, Path], parent: Path, tmp_path: Path, run_here: Run
) -> None:
    separate = datasets["separate"]
    result = train(
        tmp_path / "a", "--max-updates", 1, "--init-from", parent, "--share-embeddings", "decoder", dataset=separate,
        code=2,
    )  # fmt: skip
    refused(result, "share_embeddings is all, not decoder")
    text = datasets["joined"].parent
    made = run_here(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", text / "train", "--validpref", text / "valid"),
        *("--destdir", tmp_path / "other", "--vocab-size", 64),
    )
    assert made.returncode == 0, made.stderr.decode()
    result = train(tmp_path / "b", "--max-updates", 1, "--init-from", parent, dataset=tmp_path / "other", code=2)
    refused(result, f"--init-from {parent}: its source vocabulary has 70 pieces, not 64", "--vocab-from")


# --freeze


def test_frozen_parameters_do_not_change_and_have_no_optimizer_state(
    train: Train, parent: Path, tmp_path: Path
) -> None:
    patterns = ("--freeze", "encoder.*", "--freeze", "*.norm.bias")
    train(tmp_path / "run", "--max-updates", 3, "--init-from", parent, *patterns)
    given, checkpoint = load_checkpoint(parent), last(tmp_path / "run")
    frozen = {name for name in given.weights if name.startswith("encoder.") or name.endswith(".norm.bias")}
    assert 0 < len(frozen) < len(given.weights)
    for name, weight in checkpoint.weights.items():
        assert np.array_equal(weight, given.weights[name]) == (name in frozen), name
    assert checkpoint.optimizer is not None
    assert {name.partition(".")[2] for name in checkpoint.optimizer} == given.weights.keys() - frozen


def test_parameters_can_be_frozen_and_unfrozen_on_resume(train: Train, tmp_path: Path) -> None:
    train(tmp_path, "--max-updates", 2)
    train(tmp_path, "--max-updates", 4, "--freeze", "decoder.*")
    second, fourth = (load_checkpoint(tmp_path / f"checkpoint_{update}.pt").weights for update in (2, 4))
    for name, weight in second.items():
        assert np.array_equal(weight, fourth[name]) == name.startswith("decoder."), name
    train(tmp_path, "--max-updates", 6)
    optimizer = last(tmp_path).optimizer
    assert optimizer is not None
    steps = {name.startswith("step.decoder."): float(t) for name, t in optimizer.items() if name.startswith("step.")}
    assert steps == {True: 2.0, False: 6.0}


def test_a_shared_matrix_is_frozen_by_either_of_its_names() -> None:
    for share, frozen in (("all", "target_embedding.weight"), ("decoder", "source_embedding.weight")):
        model = Transformer(replace(SMALL, share_embeddings=share), 12, 12)
        freeze(model, ["source_embedding.*"])
        assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == [frozen]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("encode.*", r"--freeze encode\.\*: no parameter matches; some names are .*encoder\.0.*source_embedding"),
        ("*", r"nothing is left to train"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        freeze(Transformer(SMALL, 12, 12), ["decoder.*", pattern])


# --reset-progress


def test_reset_progress_returns_to_the_first_epoch_without_a_best_value(train: Train, tmp_path: Path) -> None:
    each = ("--validate-every", 3, "--keep-best", 2)
    train(tmp_path, "--max-updates", 12, *each)
    before = last(tmp_path).progress
    assert before["epoch"] > 1
    train(tmp_path, "--max-updates", 15, *each, "--reset-progress", "--lr-scale", 1e-9)
    after = last(tmp_path).progress
    assert (after["update"], after["epoch"], after["updates_in_epoch"]) == (15, 1, 3)
    assert {update for update, _ in after["checkpoint_validations"]} == {15}
    assert [row["update"] for row in metrics(tmp_path, "valid")] == [3, 6, 9, 12, 15]
    train(tmp_path, "--max-updates", 16, *each, "--reset-progress")
    assert last(tmp_path).progress["updates_in_epoch"] == 4


def test_a_run_resumes_with_other_data_only_if_progress_is_reset(
    train: Train, datasets: dict[str, Path], tmp_path: Path, run_here: Run
) -> None:
    text, words = datasets["joined"].parent, (datasets["joined"].parent / "train.en").read_text().splitlines()
    for language in ("en", "de"):
        lines = (text / f"train.{language}").read_text().splitlines()
        (tmp_path / f"train.{language}").write_text("\n".join(lines[: len(words) // 2]) + "\n")
    made = run_here(
        *("nmt-preprocess", "-s", "en", "-t", "de", "--trainpref", tmp_path / "train", "--validpref", text / "valid"),
        *("--destdir", tmp_path / "half", "--vocab-from", datasets["joined"]),
    )
    assert made.returncode == 0, made.stderr.decode()
    run = tmp_path / "run"
    train(run, "--max-updates", 8)
    refused(
        train(run, "--max-updates", 9, dataset=tmp_path / "half", code=2),
        "use the data it was started with",
        "--reset-progress",
    )
    for end in (9, 10):
        train(run, "--max-updates", end, "--reset-progress", dataset=tmp_path / "half")
    assert (last(run).progress["epoch"], last(run).progress["updates_in_epoch"]) == (1, 2)
    refused(train(run, "--max-updates", 11, "--reset-progress", code=2), "use the data", "already taken effect")


def test_a_run_is_initialized_with_the_averaged_weights_if_the_checkpoint_has_them(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path / "parent", "--max-updates", 5, "--ema", 0.9, "--lr-scale", 5)
    given = last(tmp_path / "parent")
    arguments = ("--max-updates", 1, "--lr-scale", 1e-9, "--ema", 0.9)
    train(tmp_path / "run", "--init-from", tmp_path / "parent" / "checkpoint_last.pt", *arguments)
    checkpoint = last(tmp_path / "run")
    assert given.ema is not None
    assert checkpoint.ema is not None
    for name, average in given.ema.items():
        for ours in (checkpoint.weights[name], checkpoint.ema[name]):
            np.testing.assert_allclose(ours, average, rtol=0, atol=1e-7)
