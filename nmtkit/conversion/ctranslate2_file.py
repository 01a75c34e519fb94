"""Reads `model.bin`, the file format of CTranslate2 since release 3.0, without the package ctranslate2.

All numbers are in the byte order of the machine that wrote the file, in practice little-endian.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.storage.files import map_file
from nmtkit.wording import quoted

_BINARY_VERSION = 6
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)  # by number


class Spec(NamedTuple):
    """The content of a `model.bin`."""

    name: str  #: model specification, such as "TransformerSpec"
    revision: int  #: revision of the specification
    variables: dict[str, Tensor]  #: weights, and attributes as tensors without dimensions


class _Reader:
    """Reads consecutive values. Raises struct.error and ValueError at the end."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._position = content, 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(f"<{form}", self._content, self._position)[0]
        self._position += struct.calcsize(f"<{form}")
        return value

    def name(self) -> str:
        return self._bytes(self.number("H")).removesuffix(b"\0").decode()

    def tensor(self, name: str) -> Tensor:
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, size = self.number("B"), self.number("I")
        dtype = _DTYPES[kind]
        if math.prod(shape) * dtype.itemsize != size:
            raise UserError(f"model.bin is damaged: {quoted(name)} has {size} bytes, which does not match its shape")
        content = bytearray(self._bytes(size))
        return torch.frombuffer(content, dtype=dtype).reshape(shape) if size else torch.empty(shape)

    def _bytes(self, count: int) -> bytes:
        taken = self._content[self._position : self._position + count]
        if len(taken) < count:
            raise UserError("model.bin is truncated")
        self._position += count
        return taken


def read_model(path: Path) -> Spec:
    """Read a `model.bin`. An alias becomes a second name of its tensor. Call this inside `as_user_errors`.

    Raises UserError if the format is unknown, or if the file is truncated or damaged.
    """
    with path.open("rb") as file, map_file(file) as content:
        reader = _Reader(content)
        version = reader.number("I")
        if version != _BINARY_VERSION:
            raise UserError(
                f"model.bin has the format {version}, nmtkit reads {_BINARY_VERSION}: convert the model with "
                "CTranslate2 3.0 or later"
            )
        name, revision = reader.name(), reader.number("I")
        variables: dict[str, Tensor] = {}
        for _ in range(reader.number("I")):
            variable = reader.name()
            variables[variable] = reader.tensor(variable)
        for _ in range(reader.number("I")):
            alias, original = reader.name(), reader.name()
            variables[alias] = variables[original]
            if f"{original}_scale" in variables:
                variables[f"{alias}_scale"] = variables[f"{original}_scale"]
    return Spec(name, revision, variables)
