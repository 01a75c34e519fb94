"""The multilingual recipe: its steps, and the comparison of its report."""

import shutil
from pathlib import Path

import multilingual
import pytest
from multilingual import Direction, comparison, markdown
from recipe_commands import STUBS, called, make_with, unlocked
from repository import ROOT

from nmtkit.errors import UserError


def test_make_learns_one_vocabulary_then_trains_one_model_and_one_for_each_direction(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    (folder / "text").mkdir()
    for split in ("train", "val", "dev", "test", "test_2016_flickr"):
        for language in ("en", "de", "ja"):
            (folder / "text" / f"{split}.{language}").write_text(f"{language}\n" * 5)
    make = make_with(tmp_path / "bin", folder, STUBS, "MULTI30K_DIR=text", "TANAKA_DIR=text", "ENDING=")
    trainings = ("all/seed-1", "en-de/seed-1")
    assert called(make(*trainings)) == [
        "work/all/data-bin",
        *(f"work/{direction}/data-bin" for direction in ("en-de", "de-en", "en-ja", "ja-en")),
        *(f"work/{training}/checkpoints" for training in trainings),
    ]
    assert called(make(*trainings)) == []
    assert make(*trainings, "DIRECTIONS=en-de de-en").returncode == 0
    assert (folder / "work/all/text/all.source").read_text() == "en\n" * 5 + "de\n" * 5


def test_text_of_another_folder_changes_the_joined_text_and_the_vocabulary_at_once(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    for name in ("one", "other"):
        (folder / name).mkdir()
        for split in ("train", "val", "test_2016_flickr"):
            for language in ("en", "de"):
                (folder / name / f"{split}.{language}").write_text(f"{name} {language}\n")
    make = make_with(tmp_path / "bin", folder, STUBS, "ENDING=", "DIRECTIONS=en-de de-en", "all/seed-1")
    datasets = ["work/all/data-bin", "work/en-de/data-bin", "work/de-en/data-bin"]
    for name in ("one", "other"):
        assert called(make(f"MULTI30K_DIR={name}")) == [*datasets, "work/all/seed-1/checkpoints"]
        assert (folder / "work/all/text/all.source").read_text() == f"{name} en\n{name} de\n"
        assert called(make(f"MULTI30K_DIR={name}")) == []


def test_the_last_line_of_a_text_without_a_newline_is_not_joined_with_the_next_text(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    pairs = pairs_of_multi30k(folder)
    (folder / "text/train.en").write_text("one\ntwo")
    (folder / "text/train.de").write_text("eins\nzwei")
    assert make_with(tmp_path / "bin", folder, STUBS, *pairs)().returncode == 0
    assert (folder / "work/all/text/all.source").read_text() == "one\ntwo\neins\nzwei\n"
    assert (folder / "work/all/text/all.target").read_text() == "eins\nzwei\none\ntwo\n"


def pairs_of_multi30k(folder: Path) -> tuple[str, ...]:
    """Variables of make for two directions with a text in the folder of the recipe."""
    (folder / "text").mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (folder / "text" / f"{split}.{language}").touch()
    return "ENDING=", "MULTI30K_DIR=text", "DIRECTIONS=en-de de-en", "ALL=yes", "SEED=1", "scores"


def test_the_joint_model_is_not_scored_if_another_make_has_chosen_other_text_after_its_training(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    stubs = STUBS | {"nmt-train": f"{STUBS['nmt-train']}; echo other > work/de-en/fetch.command"}
    done = make_with(tmp_path / "bin", folder, stubs, *pairs_of_multi30k(folder))()
    assert done.returncode == 2
    assert "work/de-en/fetch.command: another make has begun this step with other variables" in done.stderr
    assert not list(folder.glob("work/all/seed-1/*/scores.txt"))


def test_no_step_of_the_joint_model_runs_while_the_text_of_a_direction_can_be_replaced(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    of_direction = '[[ "$*" != *work/all/seed-1/* && "$*" != *"--destdir work/all"* ]]'
    check = f"{of_direction} || {{ {unlocked('work/en-de/fetch.command')}; }}"
    stubs = {name: f"{body}\n{check}" for name, body in STUBS.items()}
    make = make_with(tmp_path / "bin", folder, stubs, *pairs_of_multi30k(folder))
    assert make().returncode == 0
    assert (folder / "work/all/seed-1/en-de/scores.txt").exists()
    assert not (folder / "unlocked").exists()


def test_a_single_direction_is_refused(tmp_path: Path) -> None:
    make = make_with(tmp_path / "bin", ROOT / "examples/multilingual", STUBS)
    assert "DIRECTIONS=en-de: give at least two directions" in make("-n", "DIRECTIONS=en-de").stderr


def test_an_unknown_direction_is_refused(tmp_path: Path) -> None:
    make = make_with(tmp_path / "bin", ROOT / "examples/multilingual", STUBS)
    assert "DIRECTIONS=en-de de-ne: use some of en-de de-en en-ja ja-en" in make("-n", "DIRECTIONS=en-de de-ne").stderr


def test_too_few_updates_for_the_average_of_each_direction_are_refused_at_the_start(tmp_path: Path) -> None:
    make = make_with(tmp_path / "bin", ROOT / "examples/multilingual", STUBS)
    refused = make("-n", "UPDATES=2000").stderr
    assert "has 500 updates and 2 checkpoints (VALIDATE_EVERY=250), but AVERAGED=3" in refused
    for enough in ("UPDATES=2004", "AVERAGED=2", "VALIDATE_EVERY=200", "SINGLE_UPDATES=501"):
        assert make("-n", "UPDATES=2000", enough).returncode == 0, enough


def test_directions_whose_text_is_missing_change_nothing_that_was_made(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    folder = examples / "multilingual"
    make = make_with(tmp_path / "bin", folder, STUBS, *pairs_of_multi30k(folder))
    assert make().returncode == 0
    missing = make("DIRECTIONS=en-de de-en en-ja")
    assert missing.returncode == 2
    assert "set TANAKA_DIR" in missing.stderr
    assert called(make()) == []


def test_differences_have_intervals_if_there_are_several_seeds() -> None:
    one = Direction("en-de", [30.0], [28.5], "13a")
    assert comparison([one]) == [("en-de", "30.00", "28.50", "+1.50", "13a")]
    (row,) = comparison([Direction("en-de", [30.0, 31.0], [28.0, 29.0], "13a")])
    assert row[3].startswith("+2.00 ± ")
    assert markdown([row]).count("\n") == 2
    assert len(multilingual.HEADER) == len(row)


def test_a_translation_that_lost_lines_is_named(tmp_path: Path) -> None:
    for folder, lines in (("all/seed-1/en-de", 0), ("en-de/seed-1", 3)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "translation.de").write_text("a\n" * lines)
    with pytest.raises(UserError, match=r"all/seed-1/en-de/translation\.de has no lines, .* has 3: remove the first"):
        multilingual._translations(tmp_path, "en-de", "1")


@pytest.mark.parametrize("updates", ["0100", "8 000", "", "0"])
def test_a_number_of_updates_that_make_would_read_differently_is_refused(updates: str, tmp_path: Path) -> None:
    done = make_with(tmp_path / "bin", ROOT / "examples/multilingual", STUBS, "-n", f"UPDATES={updates}")()
    assert done.returncode == 2
    assert f"UPDATES={updates}: give a number of updates, at least 1" in done.stderr
