"""No command replaces the files of a training run."""

import shutil
from pathlib import Path

import pytest
from commands import Run

from nmtkit.errors import UserError
from nmtkit.storage.run_files import refuse_run_file

NAMES = ["checkpoint_3.pt", "checkpoint_2.pt.unusable", "checkpoint_last.pt", "options.json", "metrics.jsonl"]


@pytest.fixture
def run_folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A save folder with a file of each kind."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(tiny_checkpoint, folder / name)
    return folder


@pytest.mark.parametrize("name", ["checkpoint_3.pt", "metrics.jsonl"])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("nmt-average", ("CHECKPOINT", "--output", "FILE")),
        ("nmt-import", ("CHECKPOINT", "--output", "FILE")),
        ("nmt-export", ("CHECKPOINT", "--to", "checkpoint", "--force", "--output", "FILE")),
        ("nmt-generate", ("--checkpoint", "CHECKPOINT", "--output", "FILE")),
        ("nmt-generate", ("--checkpoint", "CHECKPOINT", "--attention-html", "FILE", "--output", "TEXT")),
        ("nmt-preprocess", ("-s", "en", "-t", "de", "--trainpref", "TEXT", "--destdir", "DATA", "--report", "FILE")),
    ],
)
def test_no_command_replaces_a_file_of_a_training(
    command: str, options: tuple[str, ...], name: str, run_folder: Path, tiny_checkpoint: Path, run_here: Run
) -> None:
    for side in ("en", "de"):
        (run_folder.parent / f"text.{side}").write_text("a dog\n")
    words = {"CHECKPOINT": tiny_checkpoint, "FILE": run_folder / name, "TEXT": run_folder.parent / "text"}
    words["DATA"] = run_folder.parent / "data"
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    done = run_here(command, *(words.get(option, option) for option in options), input=b"")
    assert done.returncode == 2
    assert f"{name} belongs to a training run: choose a different output" in done.stderr.decode()
    assert {path.name: path.read_bytes() for path in run_folder.iterdir()} == before


def test_a_dataset_or_an_export_cannot_become_a_file_of_a_training(
    run_folder: Path, tiny_checkpoint: Path, run_here: Run
) -> None:
    new = run_folder / "checkpoint_9.pt"
    done = run_here("nmt-export", tiny_checkpoint, "--to", "safetensors", "--output", new)
    assert done.returncode == 2
    assert b"would be mistaken for a file of the run" in done.stderr
    assert not new.exists()


def test_names_of_a_training_are_free_in_other_folders(tmp_path: Path) -> None:
    for name in NAMES:
        refuse_run_file(tmp_path / name)
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    refuse_run_file(tmp_path / "metrics.jsonl")
    (tmp_path / "options.json").write_bytes(b"")
    with pytest.raises(UserError, match="belongs to a training"):
        refuse_run_file(tmp_path / "metrics.jsonl")


def test_a_link_to_a_file_of_a_training_is_refused(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run_folder / "options.json")
    with pytest.raises(UserError, match="link belongs to a training"):
        refuse_run_file(tmp_path / "link")
