"""The checkpoint file: a JSON header, named tensors and a checksum of the whole file.

`torch.save` writes the file, so `torch.load(weights_only=True)` can read it. nmtkit itself reads it without pickle: the
zip directory gives the offset of each tensor, and the header gives its name, dtype and shape. Memory is allocated only
after all sizes have been checked against the file size. docs/reference/checkpoint.md describes the file byte by byte.
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from nmtkit.errors import RunError, UserError
from nmtkit.storage.checksum import sha256, sha256_of_file
from nmtkit.storage.strict_json import parse_json
from nmtkit.wording import describe_unknown_version

FORMAT = "nmtkit checkpoint"
VERSION, LORA_VERSION = 1, 2  # of files without and with low-rank additions, which older readers would leave out
DTYPES = {"float32": torch.float32, "uint8": torch.uint8}  # by their names in the header

_HEADER, _TENSOR, _BYTE_ORDER = "archive/data/0", "archive/data/{}", "archive/byteorder"
_COMMENT = b"sha256:"
_COMMENT_BYTES = len(_COMMENT) + 64
_MAX_HEADER_BYTES = 1 << 24
_MAX_NESTING = 32  # of JSON objects and lists; nmtkit writes at most 5 levels
_MAX_NAME, _MAX_DIMENSIONS = 256, 8  # of a tensor; nmtkit writes at most 60 characters and 2 dimensions
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip member: signature, name length, extra field length
_LOCAL_SIGNATURE = b"PK\3\4"
IMPORT = "nmt-import converts models of other toolkits"
_NOT_A_CHECKPOINT = f"not an nmtkit checkpoint: {IMPORT}"
_TRUNCATED = f"truncated, or not an nmtkit checkpoint: copy it again; {IMPORT}"
_LFS_POINTER = b"version https://git-lfs"
_MALFORMED = (  # raised by zipfile, struct, json and torch for malformed content
    *(zipfile.BadZipFile, struct.error, EOFError),
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError),
)


class _Member(NamedTuple):
    """Offset, size and CRC-32 of the content of a zip member, in bytes."""

    start: int
    size: int
    crc: int


class Archive(NamedTuple):
    """What a file holds, and its SHA-256."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]
    checksum: str
    check_unchanged: Callable[[], None]  #: raises RunError if the file was overwritten: the tensors are still in it


def write_archive(file: BinaryIO, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write an archive to an empty named file, and add the list of tensors to its header.

    Raises UserError for a dtype that is not in `DTYPES`, and OSError if writing fails.
    """
    tensors = dict(_with_own_storage(tensors))
    dtype_names = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in dtype_names:
            raise UserError(f"{name} is {tensor.dtype}: a checkpoint can hold {' and '.join(DTYPES)} only")
    entries = [[name, dtype_names[tensor.dtype], list(tensor.shape)] for name, tensor in tensors.items()]
    content = json.dumps({**header, "tensors": entries}, ensure_ascii=False).encode()
    if len(content) > _MAX_HEADER_BYTES:
        raise UserError(f"the header of the checkpoint has {len(content)} bytes, more than {_MAX_HEADER_BYTES}")
    try:
        torch.save({"header": bytes_to_tensor(content), **tensors}, file)
        _append_checksum(file)
    except RuntimeError as error:  # torch reports a wrong file position instead of the disk error
        raise error.__context__ if isinstance(error.__context__, OSError) else OSError(str(error)) from error


def read_archive(path: Path) -> Archive:
    """Read an archive, with its tensors on the CPU.

    The tensors are writable views of a private memory map of the file, so their pages are read on first access. Call it
    inside `as_user_errors`.
    """
    with _open_regular(path) as (file, size):
        checksum = _verified_checksum(file, size)
        members = _members(file, size)
        header = parse_header(_read_header(file, members))
        if _read(file, members[_BYTE_ORDER]) != sys.byteorder.encode():
            raise UserError("its byte order differs from this machine's")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    listed = header["tensors"]
    tensors = {
        name: _tensor(name, dtype, shape, members[_TENSOR.format(number)], content)
        for number, (name, dtype, shape) in enumerate(listed, 1)
    }
    if len(tensors) != len(listed):
        raise UserError("the header lists a tensor twice")
    return Archive(header, tensors, checksum, partial(_check_unchanged, path, content, checksum))


def read_archive_header(path: Path) -> dict[str, Any]:
    """Read only the header, in time that does not depend on the model size. Call it inside `as_user_errors`.

    Only the CRC-32 of the header is verified, not the checksum of the file.
    """
    with _open_regular(path) as (file, size):
        return parse_header(_read_header(file, _members(file, size)))


def parse_header(content: bytes) -> dict[str, Any]:
    """Parse the header. Call it inside `as_user_errors`.

    Raises UserError for another format or another version.
    """
    header: dict[str, Any] = parse_json(content.decode())
    _check_json(header, _MAX_NESTING)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(_NOT_A_CHECKPOINT)
    if header["version"] not in (VERSION, LORA_VERSION) or isinstance(header["version"], bool):
        raise UserError(describe_unknown_version("format", header["version"], LORA_VERSION))
    return header


@contextlib.contextmanager
def as_user_errors(path: Path, kind: str = "an nmtkit checkpoint") -> Iterator[None]:
    """Convert every error that a missing, unreadable or malformed file can cause into a UserError that names `path`.

    `kind` is what the file should be.
    """
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | Path) else path
        raise UserError(f"cannot read {where}: {error.strerror or error}") from error
    except (UserError, *_MALFORMED) as error:
        if pointer := _lfs_pointer(path):
            raise UserError(f"{pointer}: a pointer of Git LFS, not the file: fetch that with git lfs pull") from error
        if isinstance(error, UserError):
            raise UserError(f"{path}: {error}") from error
        raise UserError(f"{path}: damaged, or not {kind} ({type(error).__name__})") from error


def _lfs_pointer(path: Path) -> Path | None:
    """A file, or one in a folder, that a clone without Git LFS has in place of a large one."""
    with contextlib.suppress(OSError):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                with file.open("rb") as opened:
                    if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
                        return file
    return None


def bytes_to_tensor(content: bytes) -> Tensor:
    """Copy bytes into a uint8 tensor (len(content),)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def tensor_to_bytes(tensor: Tensor) -> bytes:
    """Convert a uint8 tensor back to bytes. Raises UserError for another dtype."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise UserError(f"a tensor of bytes is {tensor.dtype}, {list(tensor.shape)}")
    return tensor.numpy().tobytes()


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
    file.write(_COMMENT_BYTES.to_bytes(2, "little"))  # the comment length is the last field of the zip directory
    file.flush()
    path = Path(file.name)
    file.write(_COMMENT + sha256(path, path.stat().st_size).encode())


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and return it with its size.

    It is opened only once, so replacing the file under the same name meanwhile has no effect.
    """
    with open(path, "rb", opener=_open_nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UserError("not a regular file")
        yield file, status.st_size


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking: opening a named pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _verified_checksum(file: BinaryIO, size: int) -> str:
    file.seek(max(0, size - _COMMENT_BYTES))
    comment = file.read(_COMMENT_BYTES) if size else b""
    if not comment.startswith(_COMMENT):
        raise UserError(_TRUNCATED)
    checksum = comment.removeprefix(_COMMENT).decode("ascii", "replace")
    if checksum != sha256_of_file(file, size - _COMMENT_BYTES):
        raise UserError("damaged, its checksum does not match: copy it again or use another checkpoint")
    return checksum


def _check_unchanged(path: Path, content: mmap.mmap, checksum: str) -> None:
    """Raise RunError if a file was overwritten since it was mapped: the map shows what is there now."""
    is_shorter = content.size() < len(content)  # reading it would end the process
    if is_shorter or sha256_of_file(cast(BinaryIO, content), len(content) - _COMMENT_BYTES) != checksum:
        raise RunError(f"{path} was overwritten after it was loaded: start again, and replace such a file by renaming")


def _members(file: BinaryIO, size: int) -> dict[str, _Member]:
    """The members of the zip archive by name. Each must be uncompressed and lie inside the file."""
    if not zipfile.is_zipfile(file):
        raise UserError(_TRUNCATED)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    members: dict[str, _Member] = {}
    end = 0  # of the previous member
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
            raise UserError("compressed or encrypted: not an nmtkit checkpoint")
        if not end <= entry.header_offset < size:
            raise ValueError("a member is outside the file, or overlaps another")
        file.seek(entry.header_offset)
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        start = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
        if signature != _LOCAL_SIGNATURE or start + entry.file_size > size or entry.filename in members:
            raise ValueError("the zip directory contradicts the file")
        end = start + entry.file_size
        members[entry.filename] = _Member(start, entry.file_size, entry.CRC)
    return members


def _read(file: BinaryIO, member: _Member) -> bytes:
    file.seek(member.start)
    return file.read(member.size)


def _read_header(file: BinaryIO, members: dict[str, _Member]) -> bytes:
    member = members.get(_HEADER)
    if member is None:
        raise UserError(_NOT_A_CHECKPOINT)
    if member.size > _MAX_HEADER_BYTES:
        raise UserError(f"its header has {member.size} bytes, more than {_MAX_HEADER_BYTES}")
    content = _read(file, member)
    if zlib.crc32(content) != member.crc:
        raise UserError("damaged, the checksum of its header does not match")
    return content


def _check_json(value: Any, nesting: int) -> None:
    """Raise ValueError for nesting deeper than `nesting` levels, or for a string with a lone surrogate."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict | list):
        if nesting == 0:
            raise ValueError("nested too deeply")
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_json(item, nesting - 1)


def _tensor(name: Any, dtype_name: Any, shape: Any, member: _Member, content: mmap.mmap) -> Tensor:
    """Map one tensor, described by its entry in the header."""
    if not isinstance(name, str) or len(name) > _MAX_NAME:
        raise ValueError("a tensor has no name")
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise UserError(f"{name} is {dtype_name:.20}: nmtkit reads {' and '.join(DTYPES)} only")
    is_valid_shape = len(shape) <= _MAX_DIMENSIONS and all(type(length) is int and length > 0 for length in shape)
    if not is_valid_shape and shape != [0]:
        raise UserError(f"{name} has an impossible shape")
    if math.prod(shape) * dtype.itemsize != member.size:
        raise UserError(f"{name} has {member.size} bytes, which does not match its shape")
    if member.size == 0:
        return torch.empty(shape, dtype=dtype)
    if member.start % dtype.itemsize:  # torch needs aligned elements
        aligned = bytearray(content[member.start : member.start + member.size])
        return torch.frombuffer(aligned, dtype=dtype).reshape(shape)
    return torch.frombuffer(content, dtype=dtype, count=math.prod(shape), offset=member.start).reshape(shape)
