"""Training on several datasets: the same run through stops and on any number of ranks, its numbers, and its errors."""

from pathlib import Path

import pytest
from commands import Run, Train
from training_runs import DROPOUT, OPTIONS, TRAIN, assert_near, assert_same_end, finish, last, metrics, refused, start

from nmtkit.training.config import BatchConfig
from nmtkit.training.training_data import distinct_names, shares_of

MIX = ("--mix", "3,2,1", "--validate-every", 10)


@pytest.fixture(scope="session")
def small(run_command: Run, datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two small datasets with the vocabulary of `joined`; the second one has no validation split."""
    folder, text = tmp_path_factory.mktemp("small"), datasets["joined"].parent
    for language in ("en", "de"):
        lines = (text / f"train.{language}").read_text().splitlines(keepends=True)
        (folder / f"half.{language}").write_text("".join(lines[:120]))
        (folder / f"few.{language}").write_text("".join(lines[120:140]))
    common = ("-s", "en", "-t", "de", "--vocab-from", datasets["joined"])
    for name, more in (("half", ("--validpref", folder / "few")), ("few", ())):
        arguments = ("--trainpref", folder / name, *more, "--destdir", folder / "data" / name)
        done = run_command("nmt-preprocess", *common, *arguments)
        assert done.returncode == 0, done.stderr.decode()
    return folder / "data/half", folder / "data/few"


@pytest.fixture
def straight(train: Train, small: tuple[Path, Path], tmp_path: Path) -> Path:
    """A run of 30 updates on three datasets."""
    train(tmp_path / "straight", *small, *MIX, *DROPOUT, "--max-updates", 30)
    return tmp_path / "straight"


def test_each_dataset_has_its_loss_tokens_and_validation(straight: Path) -> None:
    tokens = {"joined": 0, "half": 0, "few": 0}
    for row in metrics(straight, "train"):
        assert sum(row[f"train_{name}_tokens"] for name in tokens) > 0
        losses = [row[f"train_{name}_tokens"] * (row[f"train_{name}_loss"] or 0) for name in tokens]
        total = sum(row[f"train_{name}_tokens"] for name in tokens)
        assert sum(losses) / total == pytest.approx(row["loss"], rel=1e-6)
        for name in tokens:
            tokens[name] += row[f"train_{name}_tokens"]
    assert [count / sum(tokens.values()) for count in tokens.values()] == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.02)
    for row in metrics(straight, "valid"):
        assert {"valid_loss", "valid_half_loss", "valid_half_nll", "valid_half_ppl"} <= row.keys()
        assert not any("few" in name or "joined" in name for name in row)
        assert row["valid_half_loss"] != row["valid_loss"]


def test_the_first_dataset_decides_what_is_best_and_counts_epochs(straight: Path) -> None:
    rows = metrics(straight, "valid")
    progress = last(straight).progress
    assert rows[-1]["best"] == min(row["valid_loss"] for row in rows)
    (_, _, _, _), (few, *_) = progress["others"]
    assert few > progress["epoch"]


def test_a_run_stopped_anywhere_ends_as_the_straight_one(
    train: Train, small: tuple[Path, Path], straight: Path, tmp_path: Path
) -> None:
    for update in (10, 20, 30):
        train(tmp_path / "run", *small, *MIX, *DROPOUT, "--max-updates", update)
    assert_same_end(tmp_path / "run", straight)


@pytest.mark.slow
def test_the_run_is_the_same_on_other_numbers_of_ranks_also_when_it_resumes(
    datasets: dict[str, Path], small: tuple[Path, Path], tmp_path: Path
) -> None:
    def run(name: str, ranks: int, updates: int) -> None:
        arguments = (datasets["joined"], *small, *OPTIONS, *MIX[:2], "--max-updates", updates)
        finish(start(ranks, TRAIN, *arguments, "--save-dir", tmp_path / name))

    run("one", 1, 30)
    run("two", 2, 30)
    run("changed", 2, 13)
    run("changed", 1, 30)
    for name in ("two", "changed"):
        assert_near(tmp_path / name, tmp_path / "one")
        assert last(tmp_path / name).progress["others"] == last(tmp_path / "one").progress["others"]
    ours, theirs = (metrics(tmp_path / name, "train")[-1] for name in ("one", "two"))
    for name in ("joined", "half", "few"):
        assert ours[f"train_{name}_tokens"] == theirs[f"train_{name}_tokens"]
        assert ours[f"train_{name}_loss"] == pytest.approx(theirs[f"train_{name}_loss"], rel=1e-3)


def test_the_same_dataset_list_is_needed_to_resume_and_can_be_changed_with_reset_progress(
    train: Train, small: tuple[Path, Path], tmp_path: Path
) -> None:
    train(tmp_path, small[0], "--max-updates", 2)
    refused(train(tmp_path, "--max-updates", 3, code=2), "started with", "--reset-progress")
    refused(train(tmp_path, *small, "--max-updates", 3, code=2), "use the data")
    refused(train(tmp_path, small[1], "--max-updates", 3, code=2), "use the data")
    train(tmp_path, *small, "--max-updates", 3, "--reset-progress")
    assert len(last(tmp_path).progress["others"]) == 2
    train(tmp_path, *small, "--max-updates", 4, "--reset-progress")


def test_other_weights_on_resuming_are_a_warning_and_cause_no_large_update(
    train: Train, small: tuple[Path, Path], tmp_path: Path
) -> None:
    train(tmp_path, small[0], "--max-updates", 20, "--mix", "9,1")
    said = train(tmp_path, small[0], "--max-updates", 22, "--mix", "1,1").stderr.decode()
    assert "mix was 9,1, is now 1,1" in said
    assert metrics(tmp_path, "train")[20]["train_half_tokens"] < 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mix", "1,2,3"), ["3 weights for 2 datasets"]),
        (("--mix", "1,0"), ["each weight must be a number above 0"]),
        (("--mix", "1;1"), ["give numbers separated by commas"]),
        (("--mix", "1,99"), ["joined has a share of only 0.01, less than a sentence pair of --batch-tokens 400"]),
        (("--mix", "1,1", "--mix-temperature", 2), ["mutually exclusive"]),
    ],
)
def test_unusable_proportions_are_refused(
    options: tuple[object, ...], words: list[str], train: Train, small: tuple[Path, Path], tmp_path: Path
) -> None:
    refused(train(tmp_path / "run", small[0], *options, code=2), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [("--mix", "1"), ("--mix-temperature", 2)])
def test_proportions_of_a_single_dataset_are_refused(option: tuple[object, ...], train: Train, tmp_path: Path) -> None:
    refused(train(tmp_path, *option, code=2), f"{option[0]} has no effect with one dataset")


def test_datasets_that_do_not_fit_together_are_refused(
    train: Train,
    run_command: Run,
    datasets: dict[str, Path],
    small: tuple[Path, Path],
    other_validation: Path,
    tmp_path: Path,
) -> None:
    refused(train(tmp_path / "run", datasets["separate"], code=2), "cannot be mixed", "vocabulary has", "--vocab-from")
    refused(train(tmp_path / "run", small[0], datasets["joined"], code=2), "is given twice")
    text = datasets["joined"].parent / "train"
    for suffix, source in (("en", "en"), ("fr", "de")):
        (tmp_path / f"train.{suffix}").write_text(text.with_suffix(f".{source}").read_text())
    arguments = ("-s", "en", "-t", "fr", "--trainpref", tmp_path / "train", "--destdir", tmp_path / "french")
    done = run_command("nmt-preprocess", *arguments, "--spm-model", datasets["joined"] / "spm.model")
    assert done.returncode == 0, done.stderr.decode()
    refused(
        train(tmp_path / "run", tmp_path / "french", code=2), "languages are fr and de, but they have no --source-tag"
    )


def test_without_a_validation_split_of_the_first_dataset_nothing_would_be_best(
    train: Train, datasets: dict[str, Path], small: tuple[Path, Path], tmp_path: Path
) -> None:
    half, few = small
    line = train(tmp_path / "run", half, dataset=few, code=2)
    refused(line, "has no split 'valid', which decides what is best", f"give {half} first")


def test_shares_follow_from_weights_or_sizes() -> None:
    assert shares_of([5, 1, 1], BatchConfig(mix="4,1,3")) == [0.5, 0.125, 0.375]
    assert shares_of([6, 2], BatchConfig()) == [0.75, 0.25]
    assert shares_of([9, 1], BatchConfig(mix_temperature=2)) == pytest.approx([0.75, 0.25])
    assert shares_of([9, 1], BatchConfig(mix_temperature=1e9)) == pytest.approx([0.5, 0.5])
    assert shares_of([9, 1], BatchConfig(mix="1e308,1e308")) == [0.5, 0.5]


def test_names_are_the_shortest_distinct_ends_of_paths() -> None:
    assert distinct_names([Path("/a/news"), Path("/b/web")]) == ["news", "web"]
    assert distinct_names([Path("/a/en-de"), Path("/b/en-de")]) == ["a/en-de", "b/en-de"]
    assert distinct_names([Path("/a/en-de"), Path("/a/b/en-de"), Path("/c/x")]) == ["a/en-de", "b/en-de", "c/x"]
