"""Reads and writes the checkpoint file: a JSON header, named tensors and a checksum of the whole file.

Reading needs neither torch nor pickle: the zip directory gives the offset of each tensor, and the header gives its
name, dtype and shape. Memory is allocated only after all sizes have been checked against the file size.
docs/reference/checkpoint.md describes every byte.
"""

import contextlib
import json
import math
import mmap
import os
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.storage.files import begins_with, parse_json, sha256, sha256_of_file
from nmtkit.wording import describe_unknown_version

FORMAT = "nmtkit checkpoint"
VERSION, LORA_VERSION = 1, 2  # without and with low-rank additions, which older readers would ignore
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in ("float32", "uint8", "int8")}  # in the header
COMMENT = b"sha256:"
COMMENT_BYTES = len(COMMENT) + 64
MAX_HEADER_BYTES = 1 << 24
IMPORT = "nmt-import converts models of other toolkits"

_HEADER, _TENSOR, _BYTE_ORDER = "archive/data/0", "archive/data/{}", "archive/byteorder"
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: name length, extra field length
_NOT_A_CHECKPOINT = f"not an nmtkit checkpoint: {IMPORT}"
_TRUNCATED = f"truncated, or not an nmtkit checkpoint: copy it again; {IMPORT}"
_LFS_POINTER = b"version https://git-lfs"
_MALFORMED = (  # errors of zipfile, struct, json and torch for malformed content
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError),
)


class _Member(NamedTuple):
    """Offset, size and CRC-32 of the content of a zip member, in bytes."""

    start: int
    size: int
    crc: int


class Archive(NamedTuple):
    """The content of a file, and its SHA-256."""

    header: dict[str, Any]
    tensors: dict[str, NDArray[Any]]
    checksum: str
    release: Callable[[], None]  #: frees the memory of the tensors; changes to them are lost


def read_archive(path: Path) -> Archive:
    """Read an archive, whose tensors are writable views of a private memory map. Call in `as_user_errors`."""
    with _open_regular(path) as (file, size):
        checksum = _verified_checksum(file, size)
        members = _members(file, size)
        header = parse_header(_read_header(file, members))
        if _read(file, members[_BYTE_ORDER]) != sys.byteorder.encode():
            raise UserError("its byte order differs from this machine's")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    tensors = {
        name: _tensor(name, dtype, shape, members[_TENSOR.format(number)], content)
        for number, (name, dtype, shape) in enumerate(header["tensors"], 1)
    }
    return Archive(header, tensors, checksum, partial(content.madvise, mmap.MADV_DONTNEED))


def read_archive_header(path: Path) -> dict[str, Any]:
    """Return only the header of an archive, in constant time, verified by its CRC-32. Call in `as_user_errors`."""
    with _open_regular(path) as (file, size):
        return parse_header(_read_header(file, _members(file, size)))


def parse_header(content: bytes) -> dict[str, Any]:
    """Return the parsed header. Raises UserError for an unknown format or version. Call in `as_user_errors`."""
    header: dict[str, Any] = parse_json(content.decode())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(_NOT_A_CHECKPOINT)
    if header["version"] not in (VERSION, LORA_VERSION):
        raise UserError(describe_unknown_version("format", header["version"], LORA_VERSION))
    return header


@contextlib.contextmanager
def as_user_errors(path: Path, kind: str = "an nmtkit checkpoint") -> Iterator[None]:
    """Convert every error of a missing, unreadable or malformed file of a `kind` to a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | Path) else path
        raise UserError(f"cannot read {where}: {error.strerror or error}") from error
    except (UserError, *_MALFORMED) as error:
        if pointer := _lfs_pointer(path):
            raise UserError(f"{pointer}: a Git LFS pointer, not the file: fetch it with git lfs pull") from error
        if isinstance(error, UserError):
            raise UserError(f"{path}: {error}") from error
        raise UserError(f"{path}: damaged, or not {kind} ({type(error).__name__})") from error


def _lfs_pointer(path: Path) -> Path | None:
    """Find a Git LFS pointer: the file itself, or one in a folder, as in a clone without Git LFS."""
    with contextlib.suppress(OSError):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and begins_with(file, _LFS_POINTER):
                return file
    return None


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, without waiting for the writer of a pipe, and yield it with its size."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UserError("not a regular file")
        yield file, status.st_size


def _verified_checksum(file: BinaryIO, size: int) -> str:
    file.seek(max(0, size - COMMENT_BYTES))
    comment = file.read(COMMENT_BYTES) if size else b""
    if not comment.startswith(COMMENT):
        raise UserError(_TRUNCATED)
    checksum = comment.removeprefix(COMMENT).decode("ascii", "replace")
    if checksum != sha256_of_file(file, size - COMMENT_BYTES):
        raise UserError("damaged, its checksum does not match: copy it again or use a different checkpoint")
    return checksum


def _members(file: BinaryIO, size: int) -> dict[str, _Member]:
    """Return the members of the zip archive by name. Each must be uncompressed and inside the file."""
    if not zipfile.is_zipfile(file):
        raise UserError(_TRUNCATED)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    members: dict[str, _Member] = {}
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise UserError("compressed: not an nmtkit checkpoint")
        file.seek(entry.header_offset)
        start = entry.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size)))
        if start + entry.file_size > size:
            raise ValueError("a member is outside the file")
        members[entry.filename] = _Member(start, entry.file_size, entry.CRC)
    return members


def _read(file: BinaryIO, member: _Member) -> bytes:
    file.seek(member.start)
    return file.read(member.size)


def _read_header(file: BinaryIO, members: dict[str, _Member]) -> bytes:
    member = members.get(_HEADER)
    if member is None:
        raise UserError(_NOT_A_CHECKPOINT)
    if member.size > MAX_HEADER_BYTES:
        raise UserError(f"its header has {member.size} bytes, more than {MAX_HEADER_BYTES}")
    content = _read(file, member)
    if zlib.crc32(content) != member.crc:
        raise UserError("damaged, the checksum of its header does not match")
    return content


def _tensor(name: str, dtype_name: str, shape: list[int], member: _Member, content: mmap.mmap) -> NDArray[Any]:
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise UserError(f"{name} is {dtype_name}: nmtkit reads {', '.join(DTYPES)} only")
    is_valid = all(type(length) is int and length >= 0 for length in shape)
    if not is_valid or math.prod(shape) * dtype.itemsize != member.size:
        raise UserError(f"{name} has {member.size} bytes, which does not match its shape")
    tensor: NDArray[Any] = np.frombuffer(content, dtype, math.prod(shape), member.start).reshape(shape)
    return tensor if tensor.flags.aligned else tensor.copy()


def write_archive(file: BinaryIO, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an archive to an empty named file, and add the list of arrays to its header. Raises UserError for a dtype
    that is not in `DTYPES`, and OSError if writing fails."""
    for name, array in arrays.items():
        if str(array.dtype) not in DTYPES:
            raise UserError(f"{name} is {array.dtype}: a checkpoint can hold {', '.join(DTYPES)} only")
    entries = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    content = json.dumps({**header, "tensors": entries}, ensure_ascii=False).encode()
    import torch  # here, because reading needs no torch

    tensors = {name: torch.from_numpy(array) for name, array in _with_own_memory(arrays)}
    try:
        torch.save({"header": torch.frombuffer(bytearray(content), dtype=torch.uint8), **tensors}, file)
        _append_checksum(file)
    except RuntimeError as error:  # torch hides the disk error
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


def _with_own_memory(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield contiguous writable arrays. torch would write memory that two of them share as a single zip member."""
    seen = set()
    for name, array in arrays.items():
        address = array.ctypes.data
        if not array.flags.writeable or not array.flags.c_contiguous or (array.nbytes and address in seen):
            array = array.copy()  # torch warns of arrays that cannot be written to
        seen.add(array.ctypes.data)
        yield name, array


def _append_checksum(file: BinaryIO) -> None:
    """Write the SHA-256 of the archive into the zip comment, which is at the very end of the file."""
    file.seek(-2, os.SEEK_END)
    file.write(COMMENT_BYTES.to_bytes(2, "little"))  # the comment's length is the last field of the zip directory
    file.flush()
    path = Path(file.name)
    file.write(COMMENT + sha256(path, path.stat().st_size).encode())
