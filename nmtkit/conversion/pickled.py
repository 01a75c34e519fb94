"""Reads files of `torch.save` from other programs: tensors, plain containers and `argparse.Namespace`, nothing else.

No code of such a file runs: `torch.load(weights_only=True)` refuses every class that is not listed here.
"""

import argparse
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.errors import UserError

_MAX_SHARING = 4  # embeddings have up to three names
_GLOBAL = re.compile(r"(?:GLOBAL|module) (\S+)")


class _Inert:
    """Stands for NumPy's scalars, which fairseq stores among its statistics. It ignores all values."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


_INERT_NAMES = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype")
_ALLOWED: list[Any] = [argparse.Namespace, *((_Inert, name) for name in _INERT_NAMES)]


def load_pickled(path: Path) -> Any:
    """Read a file of `torch.save`, in its zip format or the older one, on the CPU.

    The tensors of a zip file are views of a private memory map: those that nothing uses, such as an optimizer's, are
    never read. Call it inside `as_user_errors`. Raises UserError for an object of a foreign class, naming it, and for a
    compressed file, which could need far more memory than its size.
    """
    if not path.is_file() and path.exists():  # a pipe would block
        raise UserError("not a regular file")
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise UserError("compressed: save it with torch.save again")
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", mmap=is_zip, weights_only=True)
    except (pickle.UnpicklingError, AssertionError) as error:  # torch asserts some properties of its files
        found = _GLOBAL.search(str(error))
        if found is None:
            raise UserError("damaged, or not a file of torch.save") from error
        raise UserError(
            f"it holds an object of {found[1]}, which nmtkit does not load: save the weights and options alone"
        ) from error


def dense_tensors(values: object) -> dict[str, Tensor]:
    """The tensors of a state dict by name.

    Raises UserError unless all are dense and have the values that they claim: a few may share a storage.
    """
    if not isinstance(values, dict):
        raise UserError("it holds no weights by name")
    stored: dict[int, int] = {}
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"its weight {name!r:.60} is not a tensor")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise UserError(f"its weight {name!r:.60} is not a dense tensor")
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in values.values())
    if claimed > _MAX_SHARING * sum(stored.values()):
        raise UserError(f"its weights claim {claimed} bytes, far more than it stores")
    return dict(values)
