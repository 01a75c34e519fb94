"""The checkpoint file: exact, whole or absent, safe to load, and readable without nmtkit, torch or pickle."""

import json
import math
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forged import with_header

from nmtkit.checkpoint import (
    Checkpoint,
    load_checkpoint,
    read_model_config,
    read_progress,
    save_checkpoint,
)
from nmtkit.errors import RunError, UserError
from nmtkit.model import weights as weights_module
from nmtkit.model.architectures import config_from_dict, make_model
from nmtkit.model.parameters import check_finite
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.storage.run_files import list_checkpoints
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

MakeCheckpoint = Callable[..., Checkpoint]


@pytest.fixture
def full(make_checkpoint: MakeCheckpoint) -> Checkpoint:
    """A checkpoint as training writes it, with an optimizer and two vocabularies of their own."""
    source, target = (SpaceTokenizer(Vocabulary([*SPECIALS, *pieces])) for pieces in ("abc", "äöü日"))
    config = make_checkpoint().model_config
    weights = collect_weights(make_model(config, len(source.vocab), len(target.vocab)))
    optimizer = {f"exp_avg.{name}": torch.randn_like(tensor) for name, tensor in weights.items()}
    optimizer |= {f"step.{name}": torch.tensor(7.0) for name in weights}
    progress = {"update": 12, "valid_loss": 1 / 3, "options": {"stop": {"max_minutes": None}}, "note": "größer"}
    ema = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
    arrays = (as_arrays(each) for each in (weights, optimizer, ema))
    weights_of_run, optimizer_of_run, averages = arrays
    return Checkpoint(config, weights_of_run, "en", "de", source, target, progress, optimizer_of_run, averages)


def assert_same(first: Checkpoint, second: Checkpoint) -> None:
    for name in ("weights", "ema", "optimizer"):
        ours, theirs = getattr(first, name) or {}, getattr(second, name) or {}
        assert list(ours) == list(theirs)
        for name, tensor in ours.items():
            assert tensor.dtype == theirs[name].dtype
            assert np.array_equal(tensor, theirs[name])
    for name in ("model_config", "source_language", "target_language", "progress", "joined"):
        assert getattr(first, name) == getattr(second, name)
    for ours_side, theirs_side in ((first.source, second.source), (first.target, second.target)):
        assert ours_side.kind == theirs_side.kind
        assert ours_side.vocab == theirs_side.vocab
        assert ours_side.model == theirs_side.model


def test_a_pointer_of_git_lfs_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(UserError, match=rf"^{path}: a Git LFS pointer, not the file: fetch it with git lfs pull"):
        load_checkpoint(path)


def test_a_checkpoint_is_loaded_bit_for_bit_as_saved(
    full: Checkpoint, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    for checkpoint in (full, make_checkpoint(positions="learned", share_embeddings="none", attention_window=3)):
        save_checkpoint(tmp_path / "a.pt", checkpoint)
        loaded = load_checkpoint(tmp_path / "a.pt")
        assert_same(loaded, checkpoint)
        save_checkpoint(tmp_path / "b.pt", loaded)
        assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_options_that_an_older_checkpoint_lacks_have_their_defaults(make_checkpoint: MakeCheckpoint) -> None:
    config = make_checkpoint().model_config
    header = config.to_dict()
    removed = {name: header.pop(name) for name in ("activation", "output_bias")}
    assert removed == {"activation": "relu", "output_bias": False}
    assert config_from_dict(header) == config


def test_the_loaded_model_equals_the_saved_model(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    save_checkpoint(tmp_path / "a.pt", checkpoint)
    model = load_checkpoint(tmp_path / "a.pt").build_model()
    assert isinstance(model, Transformer)
    assert not model.training
    assert {name for name, _ in model.named_parameters()} == set(checkpoint.weights)
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach(), checkpoint.weights[name])
    assert model.source_embedding.weight is model.output_matrix  # tied, and saved once
    assert sum(len(tensor) == len(checkpoint.source.vocab) for tensor in checkpoint.weights.values()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda weights: weights.pop("decoder.1.feed_forward.inner.bias"),
            r"decoder\.1\.feed_forward\.inner\.bias is miss",
        ),
        (lambda weights: weights.update(extra=np.zeros(1, np.float32)), r"extra is unknown"),
        (
            lambda weights: weights.update({"encoder.0.feed_forward.inner.bias": np.zeros(3, np.float32)}),
            r"\[3\] where \[32\] is",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_named(
    change: Callable[[dict[str, Any]], Any], message: str, make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint()
    change(checkpoint.weights)
    with pytest.raises(UserError, match=message):
        checkpoint.build_model()


def test_moving_averages_must_also_fit_the_model(full: Checkpoint, tmp_path: Path) -> None:
    name = "encoder.0.feed_forward.inner.bias"
    save_checkpoint(tmp_path / "a.pt", replace(full, ema={**full.weights, name: np.zeros(3, np.float32)}))
    with pytest.raises(UserError, match=rf"a\.pt: the weights do not fit the model: {name} has \[3\] where \[32\] is"):
        load_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_weights_are_named(value: float, make_checkpoint: MakeCheckpoint) -> None:
    weights = {name: tensor.copy() for name, tensor in make_checkpoint().weights.items()}
    check_finite(weights)
    weights["decoder.1.feed_forward.outer.weight"][3, 5] = value
    with pytest.raises(UserError, match=r"^decoder\.1\.feed_forward\.outer\.weight contains NaN or infinity"):
        check_finite(weights)


def test_the_error_for_a_model_too_large_for_the_memory_gives_its_size(
    make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(weights_module, "load_weights", fail)
    with pytest.raises(RunError, match=r"^out of memory: the model takes 0\.00 GiB for its weights alone$"):
        make_checkpoint().build_model()


def test_torch_load_reads_a_checkpoint_with_weights_only(full: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pt", full)
    tensors = torch.load(tmp_path / "a.pt", weights_only=True)
    header = json.loads(tensors["header"].numpy().tobytes())
    assert header["progress"] == full.progress
    assert tensors["target.vocabulary"].numpy().tobytes().decode().splitlines()[4:] == list("äöü日")
    for name, tensor in full.weights.items():
        assert np.array_equal(tensors[f"weights.{name}"], tensor)


def read_without_pickle(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(header, arrays) of a checkpoint, as a reader in any language would get them from the archive's records."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        assert archive.read(names["byteorder"]) == b"little"
        header = json.loads(archive.read(names["data/0"]))
        arrays = {}
        for number, (name, dtype, shape) in enumerate(header["tensors"], 1):
            arrays[name] = np.frombuffer(archive.read(names[f"data/{number}"]), dtype).reshape(shape)
    return header, arrays


def test_a_checkpoint_can_be_read_with_a_zip_reader_and_json_alone(
    full: Checkpoint, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    for checkpoint in (full, make_checkpoint()):
        save_checkpoint(tmp_path / "a.pt", checkpoint)
        header, arrays = read_without_pickle(tmp_path / "a.pt")
        assert header["format"] == "nmtkit checkpoint"
        assert header["model"] == checkpoint.model_config.to_dict()
        assert arrays["source.vocabulary"].tobytes() == checkpoint.source.vocab.to_bytes()
        assert arrays["source.tokenizer"].tobytes() == checkpoint.source.model
        for prefix, tensors in (("weights", checkpoint.weights), ("optimizer", checkpoint.optimizer or {})):
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(arrays[f"{prefix}.{name}"], tensor)
        assert sum(name.startswith("weights.") for name in arrays) == len(checkpoint.weights)


def test_a_file_truncated_anywhere_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content, path = tiny_checkpoint.read_bytes(), tmp_path / "cut.pt"
    lengths = {0, 1, 3, 70, 71, 100, len(content) // 2, *(len(content) - n for n in (1, 2, 64, 70, 71, 72, 73, 95))}
    for length in lengths | {random.Random(1).randrange(len(content)) for _ in range(20)}:
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=rf"^{path}: "):
            load_checkpoint(path)


def test_one_changed_byte_anywhere_is_noticed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content, path = tiny_checkpoint.read_bytes(), tmp_path / "flipped.pt"
    places = {
        0,
        1,
        2,
        3,
        30,
        64,
        200,
        len(content) // 2,
        *(len(content) - n for n in (1, 20, 64, 65, 71, 72, 73, 74, 93)),
    }
    for place in places | {random.Random(2).randrange(len(content)) for _ in range(40)}:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(UserError, match=rf"^{path}: "):
            load_checkpoint(path)


def test_progress_is_read_without_the_tensors(full: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, full)
    assert read_progress(path) == full.progress
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in the middle of the tensors
    path.write_bytes(content)
    assert read_progress(path) == full.progress
    header = content.index(b'{"format"')
    for place in (header, header + 20, content.index(b'"progress"'), header + 300):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UserError, match=rf"^{path}: damaged"):
            read_progress(path)


def test_the_error_for_a_folder_suggests_its_best_else_its_last_else_its_newest_checkpoint(tmp_path: Path) -> None:
    def said() -> str:
        found = set()
        for read in (load_checkpoint, read_progress, read_model_config):
            with pytest.raises(UserError, match=rf"^{tmp_path} is a folder: ") as error:
                read(tmp_path)
            found.add(str(error.value).removeprefix(f"{tmp_path} is a folder: "))
        (advice,) = found
        return advice

    (tmp_path / "averaged.pt").touch()
    (tmp_path / "checkpoint_best.pt").mkdir()  # which is no checkpoint
    assert said() == "give the file of a checkpoint; nmt-import converts models of other toolkits"
    for name in ("checkpoint_9.pt", "checkpoint_10.pt", "checkpoint_last.pt"):
        (tmp_path / name).touch()
        assert said() == f"use {tmp_path / name}"
    (tmp_path / "checkpoint_best.pt").rmdir()
    (tmp_path / "checkpoint_best.pt").touch()
    assert said() == f"use {tmp_path / 'checkpoint_best.pt'}"
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    assert said() == f"use {tmp_path / 'checkpoint_best.pt'}"
    (tmp_path / "config.json").write_text('{\n  "format": "nmtkit checkpoint",\n')
    assert said() == f"nmt-export {tmp_path} --to checkpoint converts its safetensors to a checkpoint"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "format version 3, this nmtkit reads up to 2: use a newer nmtkit"),
        ({"version": 0}, "format version 0, this nmtkit reads up to 2: the file is damaged"),
        ({"version": 2, "lora": {"lora_rank": 2}}, r"lora_a\.0 is missing"),
        ({"format": "another"}, "not an nmtkit checkpoint"),
        ({"model": {"d_model": 16, "wings": 2}}, "'wings' .*newer version"),
        ({"model": {"d_model": 15}}, "--d-model 15"),
        ({"tokenizer": {}}, "not an nmtkit checkpoint"),
        ({"source_language": "de"}, "not an nmtkit checkpoint"),
        ({"target_language": "a/b"}, "not an nmtkit checkpoint"),
    ],
)
def test_a_header_of_another_version_or_with_invalid_values_is_refused(
    change: dict[str, Any], message: str, full: Checkpoint, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, full)
    path.write_bytes(with_header(path.read_bytes(), change))
    with pytest.raises(UserError, match=rf"^{path}: .*{message}"):
        load_checkpoint(path, merge=False)


def test_the_numbered_checkpoints_are_listed_oldest_first(tmp_path: Path) -> None:
    for name in (
        "checkpoint_10.pt",
        "checkpoint_9.pt",
        "checkpoint_last.pt",
        "checkpoint_1.pt.bak",
        ".checkpoint_3.pt",
    ):
        (tmp_path / name).touch()
    assert list_checkpoints(tmp_path) == [(9, tmp_path / "checkpoint_9.pt"), (10, tmp_path / "checkpoint_10.pt")]
