"""The archive under a checkpoint: read without pickle, of exactly the sizes that it claims, and never opened twice."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forged import archive_of, header_of, members_of, with_tensor
from patience import PATIENCE
from repository import ROOT

from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.errors import UserError
from nmtkit.storage import archive
from nmtkit.storage.files import sha256_of_file

NORM = "weights.encoder.0.around_self_attention.norm.weight"  # a tensor of 16 elements
MakeCheckpoint = Callable[..., Checkpoint]


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_checkpoint(path)
    return str(error.value)


def assert_same_weights(first: Checkpoint, second: Checkpoint) -> None:
    assert first.weights.keys() == second.weights.keys()
    assert all(np.array_equal(tensor, second.weights[name]) for name, tensor in first.weights.items())


# What is read


def test_tensors_are_read_at_any_byte_alignment(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members, original = members_of(tiny_checkpoint.read_bytes()), load_checkpoint(tiny_checkpoint)
    for padding in range(4):  # before the first tensor
        path = tmp_path / f"{padding}.pt"
        path.write_bytes(archive_of({"archive/padding": bytes(padding), **members}))
        assert_same_weights(load_checkpoint(path), original)


def test_changing_loaded_tensors_does_not_change_the_file(tiny_checkpoint: Path) -> None:
    before = tiny_checkpoint.read_bytes()
    for weight in load_checkpoint(tiny_checkpoint).weights.values():
        weight[...] = 0
    assert tiny_checkpoint.read_bytes() == before


def test_a_file_replaced_while_it_is_read_gives_its_original_content(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    for successor in (None, make_checkpoint(seed=2)):
        save_checkpoint(path, make_checkpoint(seed=1))

        def replace_after_checksum(*arguments: Any, successor: Checkpoint | None = successor) -> str:
            digest = sha256_of_file(*arguments)
            path.unlink() if successor is None else save_checkpoint(path, successor)
            return digest

        monkeypatch.setattr(archive, "sha256_of_file", replace_after_checksum)
        assert_same_weights(load_checkpoint(path), make_checkpoint(seed=1))


# What is written


def test_tensors_that_share_memory_are_written_as_separate_members(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    whole = np.random.default_rng(1).standard_normal(3 * 16).astype(np.float32)
    views = {"a.x": whole[:16], "b.x": whole[16:32], "c.x": whole[32:]}
    optimizer = {**views, "strided.x": whole[::2], "again.x": views["a.x"]}
    save_checkpoint(tmp_path / "a.pt", replace(checkpoint, ema=checkpoint.weights, optimizer=optimizer))
    loaded = load_checkpoint(tmp_path / "a.pt")
    for written, read in ((checkpoint.weights, loaded.ema), (optimizer, loaded.optimizer)):
        assert read is not None
        assert read.keys() == written.keys()
        assert all(np.array_equal(tensor, read[name]) for name, tensor in written.items())
    members = members_of((tmp_path / "a.pt").read_bytes())
    for number, (_, _, shape) in enumerate(header_of(members)["tensors"], 1):
        assert len(members[f"archive/data/{number}"]) in (torch.Size(shape).numel(), 4 * torch.Size(shape).numel())


def test_an_unsupported_tensor_type_is_not_written(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    weights: Any = {name: weight.astype(np.float16) for name, weight in checkpoint.weights.items()}
    with pytest.raises(UserError, match=r"weights\..* is float16: a checkpoint can hold"):
        save_checkpoint(tmp_path / "a.pt", replace(checkpoint, weights=weights))
    assert list(tmp_path.iterdir()) == []


# What is refused


@pytest.mark.parametrize(("type_name", "item_size"), [*(("float16", 2), ("bfloat16", 2), ("float64", 8), ("wings", 4))])
def test_unsupported_element_types_are_refused_and_named(
    type_name: str, item_size: int, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    content = with_tensor(tiny_checkpoint.read_bytes(), NORM, type_name, [16], bytes(16 * item_size))
    assert f"{NORM} is {type_name}: nmtkit reads float32, uint8, int8" in refusal(tmp_path / "a.pt", content)


def test_another_byte_order_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    members = members_of(tiny_checkpoint.read_bytes()) | {"archive/byteorder": b"big"}
    assert "byte order" in refusal(tmp_path / "a.pt", archive_of(members))


def test_a_compressed_archive_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    content = archive_of(members_of(tiny_checkpoint.read_bytes()), zipfile.ZIP_DEFLATED)
    assert "not an nmtkit checkpoint" in refusal(tmp_path / "a.pt", content)


def test_a_checkpoint_is_read_without_torch(tiny_checkpoint: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nmtkit.storage.archive import read_archive; "
        "archive = read_archive(Path(sys.argv[1])); print(len(archive.tensors), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tiny_checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=ROOT)
    assert done.stdout.split() == [str(len(header_of(members_of(tiny_checkpoint.read_bytes()))["tensors"])), "False"]
