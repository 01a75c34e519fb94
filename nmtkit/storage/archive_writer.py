"""Writes the checkpoint file that `nmtkit.storage.archive` reads: like `torch.save`, with a checksum at the end."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.storage.archive import COMMENT, COMMENT_BYTES, DTYPES, MAX_HEADER_BYTES
from nmtkit.storage.files import sha256


def write_archive(file: BinaryIO, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an archive to an empty named file, and add the list of arrays to its header.

    Raises UserError for a dtype that is not in `DTYPES`, and OSError if writing fails.
    """
    tensors = dict(_with_own_storage(arrays))
    entries = [[name, _dtype_name(name, array), list(array.shape)] for name, array in arrays.items()]
    content = json.dumps({**header, "tensors": entries}, ensure_ascii=False).encode()
    if len(content) > MAX_HEADER_BYTES:
        raise UserError(f"the header of the checkpoint has {len(content)} bytes, more than {MAX_HEADER_BYTES}")
    try:
        torch.save({"header": torch.frombuffer(bytearray(content), dtype=torch.uint8), **tensors}, file)
        _append_checksum(file)
    except RuntimeError as error:  # torch hides the disk error
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


def _dtype_name(name: str, array: NDArray[Any]) -> str:
    dtype = str(array.dtype)
    if dtype not in DTYPES:
        raise UserError(f"{name} is {dtype}: a checkpoint can hold {', '.join(DTYPES)} only")
    return dtype


def _with_own_storage(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the arrays as contiguous tensors, each with its own storage.

    torch writes storages, and a shared storage would become a single zip member.
    """
    seen = set()
    for name, array in arrays.items():
        address = array.ctypes.data
        if not array.flags.writeable or not array.flags.c_contiguous or (array.nbytes and address in seen):
            array = array.copy()  # torch warns of arrays that cannot be written to
        seen.add(array.ctypes.data)
        yield name, torch.from_numpy(array)


def _append_checksum(file: BinaryIO) -> None:
    """Write the SHA-256 of the archive into the zip comment, which is at the very end of the file."""
    file.seek(-2, os.SEEK_END)
    file.write(COMMENT_BYTES.to_bytes(2, "little"))  # the comment's length is the last field of the zip directory
    file.flush()
    path = Path(file.name)
    file.write(COMMENT + sha256(path, path.stat().st_size).encode())
