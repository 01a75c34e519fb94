"""Reads `model.bin`, the file format of CTranslate2 since release 3.0, without the package ctranslate2.

All numbers are in the byte order of the machine that wrote the file, in practice little-endian.
"""

import math
import struct
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.wording import quoted

_BINARY_VERSION = 6
_SPEC, _REVISION = "TransformerSpec", 7
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)  # by number


def read_model(path: Path) -> dict[str, Tensor]:
    """Read the weights of a `model.bin` by name, and its attributes as tensors without dimensions.

    An alias becomes a second name of its tensor. Call this inside `as_user_errors`. Raises UserError if the format or
    the kind of model is unknown, or if a tensor is damaged.
    """
    with path.open("rb") as file:
        version = _number(file, "I")
        if version != _BINARY_VERSION:
            raise UserError(
                f"model.bin has the format {version}, nmtkit reads {_BINARY_VERSION}: convert the model with "
                "CTranslate2 3.0 or later"
            )
        name, revision = _name(file), _number(file, "I")
        if (name, revision) != (_SPEC, _REVISION):
            raise UserError(f"{quoted(name)} of revision {revision} is not supported, only {_SPEC} {_REVISION}")
        variables: dict[str, Tensor] = {}
        for _ in range(_number(file, "I")):
            variable = _name(file)
            variables[variable] = _tensor(file, variable)
        for _ in range(_number(file, "I")):
            alias, original = _name(file), _name(file)
            variables[alias] = variables[original]
            if f"{original}_scale" in variables:
                variables[f"{alias}_scale"] = variables[f"{original}_scale"]
    return variables


def _number(file: BinaryIO, form: str) -> int:
    number: int = struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]
    return number


def _name(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).removesuffix(b"\0").decode()


def _tensor(file: BinaryIO, name: str) -> Tensor:
    shape = [_number(file, "I") for _ in range(_number(file, "B"))]
    dtype, size = _DTYPES[_number(file, "B")], _number(file, "I")
    if math.prod(shape) * dtype.itemsize != size:
        raise UserError(f"model.bin is damaged: {quoted(name)} has {size} bytes, which does not match its shape")
    return torch.frombuffer(bytearray(file.read(size)), dtype=dtype).reshape(shape) if size else torch.empty(shape)
