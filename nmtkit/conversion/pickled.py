"""Reads files of `torch.save` from other programs: tensors, plain containers, options, and vocabularies of torchtext.

Runs no code from such a file, because `torch.load(weights_only=True)` rejects unknown classes. None of these programs
is needed, because stand-ins replace their classes.
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
from nmtkit.wording import quoted

SIGNATURES = (b"PK\3\4", b"\x80\2")  #: torch's zip format, and the older one
_FOREIGN_CLASS = re.compile(r"GLOBAL (\S{1,100})")  # in torch's message


class ForeignObject:
    """Replaces an object whose class is not loaded, and keeps its attributes."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


def _new_dict(*_: object) -> dict[object, object]:
    return {}


_FOREIGN = (  # with data, then without effect on the model
    *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.nodes.AnyNode"),
    *("torchtext.vocab.Vocab", "torchtext.data.field.Field", "onmt.inputters.text_dataset.TextMultiField"),
    *("torchtext.data.utils._split_tokenizer", "onmt.inputters.text_dataset._feature_tokenize", "functools.partial"),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *("numpy.dtype", "numpy.ndarray"),
    *(f"fairseq.meters.{name}" for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
    *("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata"),
    *("typing.Any", *(f"builtins.{name}" for name in ("dict", "list", "int"))),  # types of options
)
_ALLOWED: list[Any] = [
    argparse.Namespace,
    *((ForeignObject, name) for name in _FOREIGN),
    (_new_dict, "collections.defaultdict"),
]


def load_pickled(path: Path) -> Any:
    """Read a file of `torch.save`, in its zip format or the older one, on the CPU.

    Tensors in a zip file are views of a memory map, so unused ones, such as an optimizer's, take no memory. Call this
    inside `as_user_errors`. Raises UserError for an unknown class, for a compressed file, and for wrong checksums.
    """
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        _check_zip(path)
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", mmap=is_zip, weights_only=True)
    except (pickle.UnpicklingError, AssertionError) as error:  # torch uses assertions to check files
        if found := _FOREIGN_CLASS.search(str(error)):
            reason = f"it contains an object of {found[1]}, which nmtkit does not load: save only weights and options"
            raise UserError(reason) from error
        raise UserError("damaged, or not a file from torch.save") from error


def _check_zip(path: Path) -> None:
    """Raise UserError if a file is compressed, so that it cannot be mapped, or damaged. torch checks neither."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise UserError("compressed: save it with torch.save again")
        if name := archive.testzip():
            raise UserError(f"damaged, the checksum of {quoted(name)} in it does not match: copy it again")


def named_tensors(values: object) -> dict[str, Tensor]:
    """Return the tensors (…) of a state dict by name. Raises UserError for anything else."""
    if not isinstance(values, dict):
        raise UserError("it contains no weights by name")
    for name, tensor in values.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"its weight {quoted(name)} is not a tensor")
    return dict(values)
