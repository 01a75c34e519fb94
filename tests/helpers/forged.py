"""Checkpoints that nmtkit would not write: archives whose members or header are changed, under a right checksum."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

Members = dict[str, bytes]


def members_of(content: bytes) -> Members:
    """The members of an archive by name, in the order of its directory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these members with a checksum; their bytes are not aligned."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return signed(file.getvalue())


def signed(archive: bytes) -> bytes:
    """An archive that has no comment, with its checksum as the comment."""
    body = archive[:-2] + (71).to_bytes(2, "little")
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode()


def unsigned(content: bytes) -> bytes:
    """The inverse of `signed`."""
    return content[:-73] + bytes(2)


def header_of(members: Members) -> dict[str, Any]:
    """The header of a checkpoint's members."""
    header: dict[str, Any] = json.loads(members["archive/data/0"])
    return header


def with_header(content: bytes, changes: Mapping[str, Any]) -> bytes:
    """A checkpoint with other entries in its header."""
    members = members_of(content)
    members["archive/data/0"] = json.dumps(header_of(members) | dict(changes)).encode()
    return archive_of(members)


def with_tensor(content: bytes, name: str, type_name: str, shape: Any, elements: bytes) -> bytes:
    """A checkpoint in which a tensor has another type, shape or content."""
    members = members_of(content)
    header = header_of(members)
    names = [entry[0] for entry in header["tensors"]]
    number = names.index(name)
    header["tensors"][number] = [name, type_name, shape]
    members["archive/data/0"] = json.dumps(header).encode()
    members[f"archive/data/{number + 1}"] = elements
    return archive_of(members)
