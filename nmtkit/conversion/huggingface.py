"""Reads the files of a folder of Hugging Face's transformers: JSON and weights."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.checkpoint import SAFETENSORS_FILE
from nmtkit.conversion.pickled import load_pickled, named_tensors
from nmtkit.conversion.safetensors import read_tensors
from nmtkit.errors import UserError
from nmtkit.storage.files import parse_json
from nmtkit.text.reading import is_regular_file, read_bytes, refuse_special_file
from nmtkit.wording import quoted

CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
PICKLED = "pytorch_model.bin"
_INDEX = ".index.json"  # after the name of the file that is stored in shards
_SHARD = re.compile(r"\w[\w.-]*")
_MAX_JSON_BYTES = 1 << 26  # a vocabulary of 500,000 pieces takes about 10 MB


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError, naming the file, if it is missing or malformed."""
    try:
        values = parse_json(read_part(path, _MAX_JSON_BYTES).decode())
        json.dumps(values, ensure_ascii=False).encode()  # refuses lone surrogates
    except ValueError as error:
        raise UserError(f"{path.name} is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path.name} is not a JSON object")
    return values


def read_part(path: Path, limit: int) -> bytes:
    """Read a file of a folder. Raises UserError if it is missing, not a regular file, or larger than `limit` bytes."""
    refuse_special_file(path)
    if not path.exists():
        raise UserError(f"{path.name} is missing")
    return read_bytes(path, limit)


def model_type(path: Path) -> str | None:
    """The architecture in the folder's config.json; None if there is none."""
    if not is_regular_file(path / CONFIG):
        return None
    kind = read_json(path / CONFIG).get("model_type")
    return kind if isinstance(kind, str) else None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights by name, from one file or from shards, each in its own number format.

    Raises UserError if they are missing or damaged.
    """
    for name, read in ((SAFETENSORS_FILE, read_tensors), (PICKLED, _read_pickled)):
        if (folder / name).exists():
            return read(folder / name)
        if (folder / f"{name}{_INDEX}").exists():
            return _read_shards(folder, f"{name}{_INDEX}", read)
    raise UserError(f"has neither {SAFETENSORS_FILE} nor {PICKLED}, nor their shards")


def _read_pickled(path: Path) -> dict[str, Tensor]:
    return named_tensors(load_pickled(path), path)


def _read_shards(folder: Path, index: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of all files of an index, which gives the file of each.

    Raises UserError for a file outside the folder, and for one that has other weights than the index says.
    """
    places = read_json(folder / index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise UserError(f"{index} has no weight_map of names and files")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        if _SHARD.fullmatch(file) is None:
            raise UserError(f"{index}: {quoted(file)} is not the name of a file in this folder")
        if not (folder / file).exists():
            raise UserError(f"{file}, listed in {index}, is missing")
        found = read(folder / file)
        if found.keys() != {name for name, place in places.items() if place == file}:
            raise UserError(f"{file} has other weights than {index} says: damaged")
        weights |= found
    return weights
