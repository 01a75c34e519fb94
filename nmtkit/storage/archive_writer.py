"""Writes the checkpoint file that `nmtkit.storage.archive` reads: like `torch.save`, with a checksum at the end."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.storage.archive import COMMENT, COMMENT_BYTES, DTYPES, MAX_HEADER_BYTES
from nmtkit.storage.files import sha256


def write_archive(file: BinaryIO, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an archive to an empty named file, and add the list of tensors to its header.

    Raises UserError for a dtype that is not in `DTYPES`, and OSError if writing fails.
    """
    tensors = dict(_with_own_storage(tensors))
    entries = [[name, _dtype_name(name, tensor), list(tensor.shape)] for name, tensor in tensors.items()]
    content = json.dumps({**header, "tensors": entries}, ensure_ascii=False).encode()
    if len(content) > MAX_HEADER_BYTES:
        raise UserError(f"the header of the checkpoint has {len(content)} bytes, more than {MAX_HEADER_BYTES}")
    try:
        torch.save({"header": bytes_to_tensor(content), **tensors}, file)
        _append_checksum(file)
    except RuntimeError as error:  # torch hides the disk error
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


def bytes_to_tensor(content: bytes) -> Tensor:
    """Copy bytes into a uint8 tensor (len(content),)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _dtype_name(name: str, tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UserError(f"{name} is {tensor.dtype}: a checkpoint can hold {' and '.join(DTYPES)} only")
    return dtype


def _with_own_storage(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors on the CPU, contiguous, each with a storage of its own and of exactly its size.

    torch writes storages: a shared one would become a single zip member, and a view would write more than its elements.
    """
    seen = set()
    for name, given in tensors.items():
        tensor = given.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or (tensor.nbytes and storage.data_ptr() in seen):
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        yield name, tensor


def _append_checksum(file: BinaryIO) -> None:
    """Write the SHA-256 of the archive into the zip comment, which is at the very end of the file."""
    file.seek(-2, os.SEEK_END)
    file.write(COMMENT_BYTES.to_bytes(2, "little"))  # the comment's length is the last field of the zip directory
    file.flush()
    path = Path(file.name)
    file.write(COMMENT + sha256(path, path.stat().st_size).encode())
