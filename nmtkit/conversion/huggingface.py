"""Reads the files in a folder of Hugging Face's transformers: weights, settings of a slow tokenizer, added tokens."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

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
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_ADDED_TOKENS = "added_tokens_decoder"  # in tokenizer_config.json
# Settings of all tokenizers, each with its only supported value, which is also the default.
_FIXED: dict[str, Any] = {
    **{"additional_special_tokens": [], "extra_special_tokens": [], "model_specific_special_tokens": {}},
    "split_special_tokens": False,
}
ANY = ...  #: stands for all values of a setting
_UNSUPPORTED_FLAGS = ("lstrip", "rstrip", "single_word", "special")  # of an added token


def model_type(path: Path) -> str | None:
    """Read the architecture from the folder's config.json; None if there is none."""
    return read_object(path / CONFIG).get("model_type") if (path / CONFIG).is_file() else None


def read_weights(folder: Path) -> ForeignWeights:
    """Read the weights by name without `model.`, from one file or from shards, in their shapes (…) and number formats.

    Raises UserError if they are missing or damaged.
    """
    for name, read in ((SAFETENSORS_FILE, read_tensors), (PICKLED, lambda path: named_tensors(load_pickled(path)))):
        if (folder / name).exists():
            found = read(folder / name)
        elif (folder / f"{name}{_INDEX}").exists():
            found = _read_shards(folder, f"{name}{_INDEX}", read)
        else:
            continue
        return ForeignWeights({name.removeprefix("model."): tensor for name, tensor in found.items()})
    raise UserError(f"has neither {SAFETENSORS_FILE} nor {PICKLED}, nor their shards")


def _read_shards(folder: Path, index: str, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the weights from all files in an index. Raises UserError if a file is missing or outside the folder."""
    weights: dict[str, Tensor] = {}
    for file in sorted(set(read_object(folder / index)["weight_map"].values())):
        if _SHARD.fullmatch(file) is None:
            raise UserError(f"{index}: {quoted(file)} is not a file in this folder")
        if not (folder / file).exists():
            raise UserError(f"{file}, listed in {index}, is missing")
        weights |= read(folder / file)
    return weights


def read_tokenizer_settings(folder: Path, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Read tokenizer_config.json; a missing file counts as empty.

    Raises UserError if special tokens or settings in it or in special_tokens_map.json differ from `fixed`.
    """
    settings, special = (read_optional(folder / file) for file in (TOKENIZER_CONFIG, _SPECIAL_TOKENS_MAP))
    check_fixed(TOKENIZER_CONFIG, settings, {**_FIXED, **fixed})
    check_fixed(_SPECIAL_TOKENS_MAP, special, {**_FIXED, **fixed})
    return settings


def check_fixed(file: str, settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise UserError if a value in a file differs from `fixed`, or for any other special token. Missing and empty
    values are accepted."""
    for name, value in settings.items():
        content = value["content"] if isinstance(value, dict) and "content" in value else value
        if name in fixed:
            if fixed[name] is not ANY and content not in (fixed[name], None, [], {}):
                raise UserError(f"{file}: {name} is {quoted(content)}, only {fixed[name]!r} is supported")
        elif name.endswith("_token") and isinstance(content, str):
            raise UserError(f"{file}: {name} is {quoted(content)}, which is not supported")


def read_added_tokens(folder: Path, settings: Mapping[str, Any], special: Collection[str] | None) -> dict[str, int]:
    """Read the ids of added tokens, by token. Flags of tokens in `special` are not checked; None checks no flag.

    The tokens are in tokenizer_config.json (`settings`), or else in added_tokens.json and tokenizer.json, as in older
    releases of transformers. Raises UserError for a token with an unsupported flag.
    """
    added: dict[str, int] = {}
    for number, token in _added_tokens(folder, settings):
        content = token["content"]
        added[content] = number
        for flag in () if special is None or content in special else _UNSUPPORTED_FLAGS:
            if token.get(flag):
                raise UserError(
                    f"added token {quoted(content)}: {flag} is {quoted(token[flag])}, which is not supported"
                )
    return added


def added_tokens(ids: Mapping[str, int], special: Collection[str]) -> dict[str, Any]:
    """Return the setting in tokenizer_config.json from which `read_added_tokens` reads these ids."""
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    tokens = {str(ids[token]): {"content": token, **flags, "special": token in special} for token in ids}
    return {_ADDED_TOKENS: tokens}


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if settings.get(_ADDED_TOKENS) is not None:
        for number, token in settings[_ADDED_TOKENS].items():
            yield int(number), token
        return
    for content, number in read_optional(folder / "added_tokens.json").items():
        yield int(number), {"content": content}
    for token in read_optional(folder / "tokenizer.json").get("added_tokens", ()):
        yield int(token["id"]), token


def read_optional(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file counts as empty."""
    return read_object(path) if path.exists() else {}
