"""nmt-import as a command: it never overwrites what it reads, and its hints can be copied."""

from pathlib import Path

import pytest
from commands import Run
from foreign_models import FsmtModel
from marian_models import MarianModel

pytest.importorskip("transformers")
pytest.importorskip("sacremoses")
pytest.importorskip("safetensors")


def test_no_file_of_a_model_folder_is_overwritten(run_here: Run, tmp_path: Path) -> None:
    folder = MarianModel(tmp_path / "marian", seed=1).folder
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    for path in contents:
        done = run_here("nmt-import", folder, "--output", path)
        assert (done.returncode, done.stderr.count(b"is an input and would be overwritten")) == (2, 1), done.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == contents


def test_an_earlier_result_in_the_folder_is_replaced(run_here: Run, tmp_path: Path) -> None:
    folder = MarianModel(tmp_path / "marian", seed=1).folder
    for _ in range(2):
        assert run_here("nmt-import", folder, "--output", folder / "imported.pt").returncode == 0


def test_no_dictionary_or_code_of_a_fairseq_model_is_overwritten(run_here: Run, tmp_path: Path) -> None:
    model = FsmtModel(tmp_path / "fsmt", 1).write_fairseq(tmp_path / "model")
    beside = [model, model.parent / "dict.en.txt", model.parent / "dict.de.txt", model.parent / "bpecodes"]
    elsewhere = [tmp_path / name for name in ("source.txt", "target.txt", "codes")]
    for path, other in zip(beside[1:], elsewhere, strict=True):
        other.write_bytes(path.read_bytes())
    options = ("--dict", *elsewhere[:2], "--bpe-codes", elsewhere[2])
    contents = {path: path.read_bytes() for path in (*beside, *elsewhere)}
    for path in contents:
        done = run_here("nmt-import", model, "--output", path, *options)
        assert (done.returncode, done.stderr.count(b"is an input and would be overwritten")) == (2, 1), done.stderr
    assert {path: path.read_bytes() for path in contents} == contents
