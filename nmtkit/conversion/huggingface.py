"""Reads the files in a folder of Hugging Face's transformers: JSON and weights."""

import re
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from nmtkit.checkpoint import SAFETENSORS_FILE
from nmtkit.conversion.folder import read_object
from nmtkit.conversion.pickled import load_pickled, named_tensors
from nmtkit.conversion.safetensors import read_tensors
from nmtkit.conversion.weights import ForeignWeights
from nmtkit.errors import UserError
from nmtkit.wording import quoted

CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
PICKLED = "pytorch_model.bin"
_INDEX = ".index.json"  # suffix after the name of a file that is stored in shards
_SHARD = re.compile(r"\w[\w.-]*")


def model_type(path: Path) -> str | None:
    """Read the architecture from the folder's config.json; None if there is none."""
    if not (path / CONFIG).is_file():
        return None
    kind = read_object(path / CONFIG).get("model_type")
    return kind if isinstance(kind, str) else None


def read_weights(folder: Path) -> ForeignWeights:
    """Read the weights by name without `model.`, from one file or from shards, in their shapes (…) and number formats.

    Raises UserError if they are missing or damaged.
    """
    for name, read in ((SAFETENSORS_FILE, read_tensors), (PICKLED, _read_pickled)):
        if (folder / name).exists():
            found = read(folder / name)
        elif (folder / f"{name}{_INDEX}").exists():
            found = _read_shards(folder, f"{name}{_INDEX}", read)
        else:
            continue
        return ForeignWeights({name.removeprefix("model."): tensor for name, tensor in found.items()})
    raise UserError(f"has neither {SAFETENSORS_FILE} nor {PICKLED}, nor their shards")


def _read_pickled(path: Path) -> dict[str, Tensor]:
    return named_tensors(load_pickled(path))


def _read_shards(folder: Path, index: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the weights from all files in an index, which gives the file of each weight.

    Raises UserError if a file is outside the folder, or if its weights differ from the index.
    """
    places = read_object(folder / index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{index} has no weight_map of names and files")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if _SHARD.fullmatch(file) is None:
            raise UserError(f"{index}: {quoted(file)} is not a file in this folder")
        if not (folder / file).exists():
            raise UserError(f"{file}, listed in {index}, is missing")
        found = read(folder / file)
        if found.keys() != {name for name, place in places.items() if place == file}:
            raise UserError(f"{file} does not contain the weights listed in {index}: damaged")
        weights |= found
    return weights
