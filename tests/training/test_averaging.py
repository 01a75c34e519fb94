"""Averages: right to the last bit of float32, of the right checkpoints, and only of those that fit together."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.model.transformer import Transformer
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.training import averaging
from nmtkit.training.averaging import average_checkpoints, average_run, best_checkpoints, last_checkpoints

Make = Callable[..., Checkpoint]


@pytest.fixture
def folder(tmp_path: Path, make_checkpoint: Make) -> Path:
    """A training run: its validation loss is lowest at 30, its BLEU highest at 20; 40 was never validated."""
    values = {10: (3.0, 11.0), 20: (2.5, 30.0), 30: (2.0, 25.0), 40: (None, None), 100: (2.2, 20.0)}
    for update, (loss, bleu) in values.items():
        checkpoint = make_checkpoint(seed=update)
        checkpoint.progress = {"update": update, "best_metric": "valid_loss", "valid_loss": loss, "valid_bleu": bleu}
        checkpoint.optimizer = {"step": np.zeros(3, np.float32)}
        save_checkpoint(tmp_path / f"checkpoint_{update}.pt", checkpoint)
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        (tmp_path / name).hardlink_to(tmp_path / "checkpoint_100.pt")
    return tmp_path


def updates(paths: list[Path]) -> list[int]:
    return [int(path.stem.removeprefix("checkpoint_")) for path in paths]


def change_progress(path: Path, **changes: Any) -> None:
    checkpoint = load_checkpoint(path)
    checkpoint.progress |= changes
    save_checkpoint(path, checkpoint)


def judge_by_bleu(folder: Path) -> None:
    for path in folder.glob("checkpoint_*0.pt"):
        change_progress(path, best_metric="valid_bleu")


def test_the_mean_is_computed_in_float64(folder: Path) -> None:
    paths = last_checkpoints(folder, 3)
    average = average_checkpoints(paths)
    loaded = [load_checkpoint(path).weights for path in paths]
    assert average.weights.keys() == loaded[0].keys()
    assert average.optimizer is None
    for name, tensor in average.weights.items():
        assert tensor.dtype == np.float32
        assert np.array_equal(tensor, np.mean([weights[name] for weights in loaded], 0, np.float64).astype(np.float32))


def test_averaging_succeeds_while_a_run_deletes_checkpoints(
    folder: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = 100

    def rotate(path: Path) -> Checkpoint:
        """Write a checkpoint and delete the oldest, before each of the first three reads."""
        nonlocal update
        if update < 103:
            update += 1
            save_checkpoint(folder / f"checkpoint_{update}.pt", make_checkpoint(seed=update))
            list_checkpoints(folder)[0][1].unlink()
        return load_checkpoint(path)

    monkeypatch.setattr(averaging, "load_checkpoint", rotate)
    average, paths = average_run(lambda: last_checkpoints(folder, 5))
    assert updates(paths) == [40, 100, 101, 102, 103]
    expected = average_checkpoints(paths)
    assert all(np.array_equal(weight, expected.weights[name]) for name, weight in average.weights.items())


def test_moving_averages_are_averaged_if_checkpoints_have_them(tmp_path: Path, make_checkpoint: Make) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(3)]
    for number, path in enumerate(paths):
        checkpoint = make_checkpoint(seed=number)
        checkpoint.ema = make_checkpoint(seed=10 + number).weights if number < 2 else None
        save_checkpoint(path, checkpoint)
    for which, seeds in (("auto", (10, 11)), ("ema", (10, 11)), ("trained", (0, 1))):
        average = average_checkpoints(paths[:2], which)
        originals = [make_checkpoint(seed=seed).weights for seed in seeds]
        for name, tensor in average.weights.items():
            assert np.array_equal(
                tensor, np.mean([weights[name] for weights in originals], 0, np.float64).astype(np.float32)
            )
        assert average.ema is None
    average_checkpoints(paths, "trained")
    with pytest.raises(UserError, match=r"2\.pt cannot be averaged .*: it has no moving average .*--weights trained"):
        average_checkpoints(paths)
    with pytest.raises(UserError, match=r"2\.pt: --weights ema: the checkpoint has no moving average"):
        average_checkpoints(paths[2:], "ema")


@pytest.mark.parametrize("share", ["all", "decoder", "none"])
def test_tied_weights_stay_tied(share: str, tmp_path: Path, make_checkpoint: Make) -> None:
    paths = [tmp_path / f"{seed}.pt" for seed in (1, 2)]
    for seed, path in enumerate(paths):
        save_checkpoint(path, make_checkpoint(seed=seed, share_embeddings=share))
    save_checkpoint(tmp_path / "average.pt", average_checkpoints(paths))
    model = load_checkpoint(tmp_path / "average.pt").build_model()
    assert isinstance(model, Transformer)
    assert (model.source_embedding.weight is model.target_embedding.weight) == (share == "all")
    assert len(list(model.parameters())) == len(load_checkpoint(paths[0]).weights)
    assert Translator.from_checkpoint(tmp_path / "average.pt").translate([""]) == [""]


def test_last_means_the_newest_by_update(folder: Path) -> None:
    assert updates(last_checkpoints(folder, 3)) == [30, 40, 100]
    assert updates(last_checkpoints(folder, 2, until=39)) == [20, 30]


def test_best_means_the_lowest_loss_or_the_highest_bleu(folder: Path) -> None:
    assert updates(best_checkpoints(folder, 1)) == [30]
    assert updates(best_checkpoints(folder, 3)) == [20, 30, 100]
    assert updates(best_checkpoints(folder, 2, until=20)) == [10, 20]
    judge_by_bleu(folder)
    assert updates(best_checkpoints(folder, 1)) == [20]
    assert updates(best_checkpoints(folder, 3)) == [20, 30, 100]
    assert updates(best_checkpoints(folder, 4)) == [10, 20, 30, 100]


def test_checkpoints_with_different_dropout_are_averaged(make_checkpoint: Make, tmp_path: Path) -> None:
    paths = [tmp_path / f"{dropout}.pt" for dropout in (0.1, 0.3)]
    for path in paths:
        save_checkpoint(path, make_checkpoint(dropout=float(path.stem)))
    weights = average_checkpoints(paths).weights
    assert all(np.array_equal(weight, weights[name]) for name, weight in make_checkpoint().weights.items())


def test_the_older_of_two_equally_good_checkpoints_is_better(folder: Path) -> None:
    for update in (20, 30, 100):
        change_progress(folder / f"checkpoint_{update}.pt", valid_loss=2.0, valid_bleu=30.0)
    for metric in ("valid_loss", "valid_bleu"):
        if metric == "valid_bleu":
            judge_by_bleu(folder)
        assert updates(best_checkpoints(folder, 1)) == [20]
        assert updates(best_checkpoints(folder, 2)) == [20, 30]
        assert updates(best_checkpoints(folder, 1, until=25)) == [20]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_value_is_never_the_best(value: float, folder: Path) -> None:
    change_progress(folder / "checkpoint_20.pt", valid_loss=value)
    assert updates(best_checkpoints(folder, 1)) == [30]
    assert updates(best_checkpoints(folder, 3)) == [10, 30, 100]
    with pytest.raises(UserError, match="only 3 checkpoints with a validation value: use --best 3"):
        best_checkpoints(folder, 4)


def test_values_on_different_validation_splits_are_not_compared(folder: Path) -> None:
    for update in (30, 40, 100):
        checkpoint = load_checkpoint(folder / f"checkpoint_{update}.pt")
        checkpoint.progress["validation_data"] = {"valid.en": "of another text"}
        save_checkpoint(folder / f"checkpoint_{update}.pt", checkpoint)
    with pytest.raises(UserError, match=r"--best: the checkpoints in .* differ in the validation split: list"):
        best_checkpoints(folder, 1)
    assert updates(best_checkpoints(folder, 1, until=20)) == [20]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"options": {"optimizer": {"label_smoothing": 0.3}}}, "differ in --label-smoothing"),
        ({"loss_version": 2}, "differ in the version of the loss"),
    ],
)
def test_losses_of_another_kind_are_not_compared(changes: dict[str, Any], difference: str, folder: Path) -> None:
    for update in (30, 40, 100):
        change_progress(folder / f"checkpoint_{update}.pt", **changes)
    with pytest.raises(UserError, match=f"{difference}: list the files instead$"):
        best_checkpoints(folder, 1)
    assert updates(best_checkpoints(folder, 1, until=20)) == [20]


def test_bleu_depends_on_the_beam_and_not_on_the_loss(folder: Path) -> None:
    judge_by_bleu(folder)
    before = best_checkpoints(folder, 1)
    for update in (30, 40, 100):
        other_loss = {"options": {"optimizer": {"label_smoothing": 0.3}}, "loss_version": 2}
        change_progress(folder / f"checkpoint_{update}.pt", **other_loss)
    assert best_checkpoints(folder, 1) == before
    change_progress(folder / "checkpoint_100.pt", options={"validation": {"valid_beam": 4}})
    with pytest.raises(UserError, match=r"differ in --valid-beam: list the files instead$"):
        best_checkpoints(folder, 1)


def test_fewer_checkpoints_than_requested_are_an_error(folder: Path) -> None:
    with pytest.raises(UserError, match=r"--last 4: .* has only 3 checkpoints up to update 30: use --last 3$"):
        last_checkpoints(folder, 4, until=30)
    with pytest.raises(UserError, match=r"--best 5: .* only 4 checkpoints with a validation value: use --best 4$"):
        best_checkpoints(folder, 5)
    with pytest.raises(UserError, match=r"--last 2: .* has only 1 checkpoint up to update 10: use --last 1$"):
        last_checkpoints(folder, 2, until=10)
    with pytest.raises(UserError, match=r"--last 1: .* has no checkpoints up to update 0$"):
        last_checkpoints(folder, 1, until=0)


def test_a_file_given_twice_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="are the same file"):
        average_checkpoints([folder / "checkpoint_100.pt", folder / "checkpoint_last.pt"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_options": {"d_ff": 48}}, "d_ff is 48, not 32"),
        ({"model_options": {"norm": "pre"}}, "norm is pre, not post"),
        ({"target_language": "fr"}, "it translates en-fr, not en-de"),
        ({"vocabulary": True}, "piece 4 of its source vocabulary is 'w0', not '<0x00>'"),
    ],
)
def test_the_error_for_different_checkpoints_names_the_difference(
    change: dict[str, Any], message: str, tmp_path: Path, make_checkpoint: Make
) -> None:
    save_checkpoint(tmp_path / "a.pt", make_checkpoint())
    other = make_checkpoint(**change.pop("model_options", {}))
    if change.pop("vocabulary", False):
        words = [f"w{n}" for n in range(len(other.source.vocab) - len(SPECIALS))]
        change["source"] = change["target"] = SpaceTokenizer(Vocabulary([*SPECIALS, *words]))
    save_checkpoint(tmp_path / "b.pt", dataclasses.replace(other, **change))
    with pytest.raises(UserError, match=message) as error:
        average_checkpoints([tmp_path / "a.pt", tmp_path / "b.pt"])
    assert str(error.value).startswith(f"{tmp_path / 'b.pt'} cannot be averaged with {tmp_path / 'a.pt'}: ")


def test_explicit_and_default_head_widths_are_compatible(tmp_path: Path, make_checkpoint: Make) -> None:
    save_checkpoint(tmp_path / "a.pt", make_checkpoint())
    save_checkpoint(tmp_path / "b.pt", make_checkpoint(d_k=8, d_v=8))
    average_checkpoints([tmp_path / "a.pt", tmp_path / "b.pt"])


# Through the command -------------------------------------------------------------------------------------------


def test_the_command_averages_a_folder_and_a_list_in_the_same_way(
    folder: Path, run_command: Run, run_here: Run
) -> None:
    one, two = folder / "one.pt", folder / "two.pt"
    done = run_command("nmt-average", folder, "--last", 2, "--output", one)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    files = [folder / "checkpoint_40.pt", folder / "checkpoint_100.pt"]
    assert run_here("nmt-average", *files, "--output", two).returncode == 0
    assert one.read_bytes() == two.read_bytes()
    assert load_checkpoint(one).progress["averaged"] == ["checkpoint_40.pt", "checkpoint_100.pt"]


def test_an_existing_file_is_replaced_only_if_it_is_a_checkpoint_or_empty(folder: Path, run_here: Run) -> None:
    output = folder / "averaged.pt"
    average = partial(run_here, "nmt-average", folder / "checkpoint_10.pt", "--output", output)
    output.touch()
    assert average().returncode == 0
    assert average().returncode == 0
    output.write_bytes(b"a thesis")
    done = average()
    assert done.returncode == 2
    assert b"averaged.pt exists and is not a checkpoint: use a different --output, or remove it" in done.stderr
    assert output.read_bytes() == b"a thesis"


def test_checkpoints_with_the_same_name_are_listed_with_their_folders(
    make_checkpoint: Make, tmp_path: Path, run_here: Run
) -> None:
    paths = [tmp_path / run / "checkpoint_60.pt" for run in ("first", "second")]
    for path in paths:
        path.parent.mkdir()
        save_checkpoint(path, make_checkpoint())
    done = run_here("nmt-average", *paths, "--output", tmp_path / "out.pt")
    assert "the average of first/checkpoint_60.pt, second/checkpoint_60.pt\n" in done.stderr.decode()
    averaged = load_checkpoint(tmp_path / "out.pt").progress["averaged"]
    assert averaged == ["first/checkpoint_60.pt", "second/checkpoint_60.pt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "select checkpoints with --last N or --best N"),
        ([".", "checkpoint_10.pt", "--last", 1], "checkpoint_best.pt"),
        ([".", "--last", 6], "has only 5 checkpoints: use --last 5"),
        (["checkpoint_10.pt", "--last", 1], "files are given"),
        ([".", "--last", 1, "--best", 1], "--last and --best are mutually exclusive"),
        (["missing.pt"], "missing.pt: no such file"),
        (["checkpoint_10.pt", "cut.pt"], "cut.pt"),
    ],
)
def test_user_errors_give_one_line_and_no_file(arguments: list[Any], message: str, folder: Path, run_here: Run) -> None:
    (folder / "cut.pt").write_bytes((folder / "checkpoint_20.pt").read_bytes()[:-500])
    paths = [folder / word if isinstance(word, str) and word[0] != "-" else word for word in arguments]
    done = run_here("nmt-average", *paths, "--output", folder / "out.pt")
    assert done.returncode == 2
    assert done.stderr.startswith(b"nmt-average: ")
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not list(folder.glob("*out.pt*"))


def test_a_trimmed_average_translates_its_text_as_before(folder: Path, run_here: Run, tmp_path: Path) -> None:
    lines = ["the dog runs", "die katze läuft über die straße"]
    best, small = folder / "checkpoint_best.pt", tmp_path / "small.pt"
    options = {"device": "cpu", "precision": "fp32"}
    before = Translator.from_checkpoint(best, **options).translate(lines, beam=1, max_len_b=3)  # type: ignore[arg-type]
    (tmp_path / "text").write_text("\n".join([*lines, *before]))
    done = run_here("nmt-average", best, "--output", small, "--trim-vocabulary", tmp_path / "text")
    assert done.returncode == 0, done.stderr
    old, new = load_checkpoint(best), load_checkpoint(small)
    assert f"kept {len(new.source.vocab)} of {len(old.source.vocab)} pieces of the source vo".encode() in done.stderr
    used = new.target.vocab.to_ids(old.target.vocab.pieces)
    assert len(new.source.vocab) < len(old.source.vocab)
    assert used.count(1) == len(old.target.vocab) - len(new.target.vocab) + 4  # the names of special ids are no pieces
    assert Translator.from_checkpoint(small, **options).translate(lines, beam=1, max_len_b=3)  # type: ignore[arg-type]
