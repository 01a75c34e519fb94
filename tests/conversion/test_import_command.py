"""nmt-import as a command: it never overwrites what it reads, and its hints can be copied."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import Run
from foreign_models import FsmtModel
from marian_models import MarianModel

from nmtkit.checkpoint import Checkpoint, load_checkpoint, read_progress, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.importers import find_importer
from nmtkit.conversion.marian import from_marian
from nmtkit.conversion.safetensors import to_safetensors
from nmtkit.errors import UserError
from nmtkit.text.changed_vocabularies import with_symbol

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


def test_a_file_that_is_not_a_checkpoint_is_not_replaced(run_here: Run, tmp_path: Path) -> None:
    folder = MarianModel(tmp_path / "marian", seed=1).folder
    (tmp_path / "thesis").write_bytes(b"a thesis")
    done = run_here("nmt-import", folder, "--output", tmp_path / "thesis")
    assert (done.returncode, b"exists and is not a checkpoint" in done.stderr) == (2, True)
    assert (tmp_path / "thesis").read_bytes() == b"a thesis"


def test_options_of_other_formats_are_refused(run_here: Run, tmp_path: Path) -> None:
    folder = MarianModel(tmp_path / "marian", seed=1).folder
    done = run_here("nmt-import", folder, "--output", tmp_path / "a.pt", "--bpe-codes", "codes")
    assert (done.returncode, b"--bpe-codes has no effect with a Hugging Face Marian model" in done.stderr) == (2, True)


@pytest.mark.parametrize("is_option", [False, True])
@pytest.mark.parametrize("name", ["a/b", "\x1b[31m"])
def test_a_name_that_is_not_a_language_is_shown_and_refused(name: str, is_option: bool, tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    options = ImportConfig(target_lang=name) if is_option else ImportConfig()
    if not is_option:
        marian.edit("tokenizer_config.json", target_lang=name)
    with pytest.raises(UserError, match=re.escape(repr(name)[:10])) as error:
        from_marian(marian.folder, options)
    assert "is not a language: give --source-lang and --target-lang" in str(error.value)
    assert len(str(error.value)) < 300


def test_what_cannot_be_imported_is_refused_with_what_can(tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0\1")
    with pytest.raises(UserError, match="tensors: not a model that nmtkit imports: give a Hugging Face Marian model"):
        find_importer(tmp_path / "model.safetensors")
    torch.save({"model": {}}, tmp_path / "model.pt")
    shutil.copy(tiny_checkpoint, tmp_path / "an-earlier-result.pt")
    with pytest.raises(UserError, match=rf"if {tmp_path}/model\.pt is a fairseq checkpoint, give that file"):
        find_importer(tmp_path)


def test_an_export_by_nmtkit_names_the_command_that_reads_it(tmp_path: Path, tiny_checkpoint: Path) -> None:
    to_safetensors(load_checkpoint(tiny_checkpoint), tmp_path / "exported")
    with pytest.raises(UserError, match=rf"convert it with nmt-export {tmp_path}/exported --to checkpoint"):
        find_importer(tmp_path / "exported")


@pytest.mark.parametrize("old_format", [False, True])
def test_a_file_of_fairseq_in_place_of_a_checkpoint_is_refused_with_the_command_that_imports_it(
    old_format: bool, tmp_path: Path
) -> None:
    torch.save({"args": None, "model": {}}, tmp_path / "model.pt", _use_new_zipfile_serialization=not old_format)
    for read in (load_checkpoint, read_progress):
        with pytest.raises(UserError, match=r"not an nmtkit checkpoint: (copy it again; )?nmt-import conv"):
            read(tmp_path / "model.pt")
    assert find_importer(tmp_path / "model.pt").name == "a fairseq checkpoint"


def test_the_name_of_an_id_without_a_piece_is_not_a_piece_of_the_model(tmp_path: Path) -> None:
    marian = MarianModel(tmp_path / "marian", seed=1)
    path = marian.folder / "vocab.json"
    ids = json.loads(path.read_text(encoding="utf-8"))
    piece, other = [piece for piece, number in ids.items() if number in (8, 9)]
    number = ids.pop(piece)
    ids[f"<unused{number}>"] = ids.pop(other)
    path.write_text(json.dumps(ids), encoding="utf-8")
    pieces = from_marian(marian.folder, ImportConfig()).target.vocab.pieces
    assert {f"<unused{number}>", f"<unused_{number}>"} <= set(pieces)


def test_a_new_language_and_its_characters_are_added_to_a_model_and_trained(
    run_here: Run, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    given = make_checkpoint(seed=3, share_embeddings="all")
    tagged = given.with_vocabularies(with_symbol((given.source, given.target), "<2de>", "▁the"))
    save_checkpoint(tmp_path / "a.pt", tagged)
    text = tmp_path / "train.am"
    text.write_text("ጽሑፍ\n" * 40, encoding="utf-8")
    (tmp_path / "train.en").write_text("<2am> the dog\n" * 40)
    for split in ("am", "en"):
        shutil.copy(tmp_path / f"train.{split}", tmp_path / f"valid.{split}")
    grow = ("--add-language", "<2am>", "--like", "<2de>", "--add-characters", text)
    done = run_here("nmt-import", tmp_path / "a.pt", "--output", tmp_path / "b.pt", *grow)
    assert done.returncode == 0, done.stderr
    grown, old = load_checkpoint(tmp_path / "b.pt"), tagged.target.vocab
    assert grown.joined
    assert grown.target.vocab.pieces[len(old) :] == [*sorted("ጽሑፍ"), "<2am>"]
    rows = grown.weights["target_embedding.weight"]
    assert (rows[-1] == tagged.weights["target_embedding.weight"][-1]).all()
    files = ("--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid", "--destdir", tmp_path / "data")
    prepared = run_here(
        "nmt-preprocess", "-s", "en", "-t", "am", *files, "--vocab-from", tmp_path / "b.pt", "--workers", 1
    )
    assert prepared.returncode == 0, prepared.stderr
    sizes = ("--encoder-layers", 1, "--decoder-layers", 2, "--d-model", 16, "--d-ff", 32, "--heads", 2)
    for rank in ((), ("--lora-rank", 2)):
        run = ("--init-from", tmp_path / "b.pt", "--save-dir", tmp_path / f"run{len(rank)}", "--max-updates", 1, *rank)
        done = run_here("nmt-train", tmp_path / "data", *sizes, *run, "--max-tokens", 200, "--device", "cpu")
        assert done.returncode == 0, done.stderr


def test_a_new_language_needs_a_similar_one_of_the_model(run_here: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for options, said in ((("<2am>",), b"needs --like"), (("<2am>", "--like", "<2de>"), b"'<2de>' is not a piece")):
        done = run_here("nmt-import", tiny_checkpoint, "--output", tmp_path / "b.pt", "--add-language", *options)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
