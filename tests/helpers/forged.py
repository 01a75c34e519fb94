"""Forges checkpoints: archives with changed members or headers, and a valid checksum."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

Members = dict[str, bytes]


def members_of(content: bytes) -> Members:
    """Read the members of an archive by name, in the order of its directory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Build an archive with a checksum. Its members are not aligned."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return signed(file.getvalue())


def signed(archive: bytes) -> bytes:
    """Append the checksum as the comment of an archive that has none."""
    body = archive[:-2] + (71).to_bytes(2, "little")
    return body + b"sha256:" + hashlib.sha256(body).hexdigest().encode()


def unsigned(content: bytes) -> bytes:
    """The inverse of `signed`."""
    return content[:-73] + bytes(2)


def header_of(members: Members) -> dict[str, Any]:
    """Parse the header of a checkpoint."""
    header: dict[str, Any] = json.loads(members["archive/data/0"])
    return header


def with_header(content: bytes, changes: Mapping[str, Any]) -> bytes:
    """Change entries in the header of a checkpoint."""
    members = members_of(content)
    members["archive/data/0"] = json.dumps(header_of(members) | dict(changes)).encode()
    return archive_of(members)


def with_tensor(content: bytes, name: str, type_name: str, shape: Any, elements: bytes) -> bytes:
    """Replace the type, shape and content of a tensor in a checkpoint."""
    members = members_of(content)
    header = header_of(members)
    names = [entry[0] for entry in header["tensors"]]
    number = names.index(name)
    header["tensors"][number] = [name, type_name, shape]
    members["archive/data/0"] = json.dumps(header).encode()
    members[f"archive/data/{number + 1}"] = elements
    return archive_of(members)
