"""Reads files of `torch.save` from other programs: tensors, plain containers, options of argparse and omegaconf.

No code of such a file runs: `check_pickle` and `torch.load(weights_only=True)` both refuse unknown classes. Neither
omegaconf nor fairseq is needed, since stand-ins replace their classes.
"""

import argparse
import io
import pickle
import sys
import zipfile
import zlib
from collections.abc import Set
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from nmtkit.conversion.pickle_check import CONFIG_NODES, DEFAULT_DICT, IGNORED, check_pickle
from nmtkit.conversion.sharing import refuse_expansion
from nmtkit.errors import UserError
from nmtkit.storage.files import map_file
from nmtkit.text.reading import refuse_special_file
from nmtkit.wording import quoted

_ZIP_SIGNATURE, _OLD_SIGNATURE = b"PK\3\4", b"\x80"
_NO_CRC = 0  # what torch.save writes after `set_crc32_options(False)`
_OLD_PICKLES = 5  # a magic number, the version, the machine, the content, and the keys of the storages that follow


class _Ignored:
    """Stands for a class of `IGNORED`. It drops all values."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


class ConfigNode:
    """A node of omegaconf: a value, or a dict or list of nodes."""

    content: object = None

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.content = state.get("_content", state.get("_val"))


def _new_dict(*_: object) -> dict[object, object]:
    return {}


def _allowed(name: str, stand_in: object) -> tuple[Any, str]:
    """An entry for `safe_globals`. torch translates the names of Python 2 to those of Python 3."""
    return stand_in, name.replace("__builtin__ long", "builtins int").replace("__builtin__", "builtins").replace(
        " ", "."
    )


_ALLOWED: list[Any] = [
    argparse.Namespace,
    *(_allowed(name, _Ignored) for name in IGNORED),
    *(_allowed(name, ConfigNode) for name in CONFIG_NODES),
    _allowed(DEFAULT_DICT, _new_dict),
]


def load_pickled(path: Path) -> Any:
    """Read a file of `torch.save`, in its zip format or the older one, on the CPU.

    The tensors of a zip file are views of a private memory map: those that nothing uses, such as an optimizer's, are
    never read. `named_tensors` verifies those that are used. Call it inside `as_user_errors`. Raises UserError for
    everything that `check_pickle` refuses, and for a compressed file, which could need far more memory than its size.
    """
    refuse_special_file(path)
    is_zip = _is_zip(path)
    if is_zip:
        _check_zip(path)
    else:
        _check_old_format(path)
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", mmap=is_zip, weights_only=True)
    except (pickle.UnpicklingError, AssertionError) as error:  # torch asserts some properties of its files
        raise UserError("damaged, or not a file of torch.save") from error


def begins_like_pickled(path: Path) -> bool:
    """Whether the first bytes of a file are those of a file of `torch.save`, in either format."""
    return _is_zip(path) or _begins_with(path, _OLD_SIGNATURE)


def _is_zip(path: Path) -> bool:
    return _begins_with(path, _ZIP_SIGNATURE)


def _begins_with(path: Path, signature: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(signature)) == signature


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise UserError("compressed: save it with torch.save again")
    reader = torch._C.PyTorchFileReader(str(path))  # of two members with one name, torch must see the same one
    if "byteorder" in reader.get_all_records() and reader.get_record("byteorder") != sys.byteorder.encode():
        raise UserError("its byte order differs from this machine's")
    content = reader.get_record("data.pkl")
    _verify(memoryview(content), _checksums(path), "list of contents")
    check_pickle(io.BytesIO(content))


def _checksums(path: Path) -> Set[tuple[int, int]]:
    """Size and CRC-32 of each member of a zip file, which torch itself does not verify."""
    with zipfile.ZipFile(path) as archive:
        return {(member.file_size, member.CRC) for member in archive.infolist()}


def _verify(content: memoryview, checksums: Set[tuple[int, int]], name: str) -> None:
    """Raise UserError for content that is not that of a member."""
    if checksums.isdisjoint({(len(content), _NO_CRC), (len(content), zlib.crc32(content))}):
        raise UserError(f"damaged, the checksum of its {name} does not match: copy it again")


def _check_old_format(path: Path) -> None:
    with path.open("rb") as file, map_file(file) as content:
        for _ in range(_OLD_PICKLES):
            check_pickle(cast(IO[bytes], content))


def named_tensors(values: object, path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict in the file `path`, by name.

    Raises UserError unless all have the values that they claim: a few may share a storage, and in a zip file each
    storage has the CRC-32 of a member.
    """
    if not isinstance(values, dict):
        raise UserError("it holds no weights by name")
    storages: dict[tuple[int, int], str] = {}
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"its weight {quoted(name)} is not a tensor")
        storage = tensor.untyped_storage()
        storages.setdefault((storage.data_ptr(), storage.nbytes()), name)
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in values.values())
    refuse_expansion(claimed, sum(size for _, size in storages), path)
    if _is_zip(path):
        checksums = _checksums(path)
        for name in storages.values():
            content = torch.empty(0, dtype=torch.uint8).set_(values[name].untyped_storage())
            _verify(content.numpy().data, checksums, f"weight {quoted(name)}")
    return dict(values)
