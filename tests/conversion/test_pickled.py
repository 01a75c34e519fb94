"""Weights in files of torch.save that were damaged on their way."""

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmtkit.conversion.pickled import load_pickled, named_tensors
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors

USED, UNUSED = torch.arange(1.0, 100.0), torch.arange(200.0, 350.0)


def write(path: Path) -> Path:
    weights = {"a": USED, "empty": torch.empty(0), "view": USED.view(3, 33)[:, 1:]}
    torch.save({"model": weights, "optimizer": {0: UNUSED}, "epoch": 1}, path)
    return path


def weights_of(path: Path) -> dict[str, Tensor]:
    with as_user_errors(path):
        return named_tensors(load_pickled(path)["model"], path)


def flip_bit(path: Path, content: bytes, byte: int) -> None:
    """Change the lowest bit of one byte of `content`, which is in the file once."""
    damaged = bytearray(path.read_bytes())
    assert damaged.count(content) == 1
    damaged[damaged.index(content) + byte] ^= 1
    path.write_bytes(damaged)


@pytest.mark.parametrize("byte", [0, 200, 395])
def test_one_changed_bit_of_a_used_tensor_is_refused(byte: int, tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt")
    assert torch.equal(weights_of(path)["view"], USED.view(3, 33)[:, 1:])
    flip_bit(path, USED.numpy().tobytes(), byte)
    with pytest.raises(UserError, match="damaged, the checksum of its weight 'a' does not match: copy it again"):
        weights_of(path)


def test_one_changed_bit_in_the_list_of_contents_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt")
    flip_bit(path, b"epoch", 0)
    with pytest.raises(UserError, match="damaged, the checksum of its list of contents does not match"):
        weights_of(path)


def test_an_unused_tensor_is_not_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt")
    flip_bit(path, UNUSED.numpy().tobytes(), 7)
    assert torch.equal(weights_of(path)["a"], USED)


@pytest.fixture
def without_checksums() -> Iterator[None]:
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


def test_a_file_that_torch_wrote_without_checksums_is_read(without_checksums: None, tmp_path: Path) -> None:
    path = write(tmp_path / "model.pt")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None
    assert torch.equal(weights_of(path)["a"], USED)


def test_a_file_of_the_other_byte_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "model.pt")
    monkeypatch.setattr("sys.byteorder", "little" if sys.byteorder == "big" else "big")
    with pytest.raises(UserError, match="its byte order differs from this machine's"):
        weights_of(path)


def test_weights_that_overlap_are_refused(tmp_path: Path) -> None:
    """Verifying each would take time out of proportion to the file."""
    path, values = write(tmp_path / "model.pt"), torch.zeros(1000).numpy()
    with pytest.raises(UserError, match="far more than it stores"):
        named_tensors({str(number): torch.from_numpy(values[number:]) for number in range(20)}, path)
