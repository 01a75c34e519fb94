"""Reads folders of Hugging Face's transformers: their JSON files, weights and defaults of generation."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.archive import as_user_errors
from nmtkit.checkpoint import SAFETENSORS_FILE
from nmtkit.conversion.pickled import load_pickled, named_tensors
from nmtkit.conversion.safetensors import read_tensors
from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.strict_json import parse_json
from nmtkit.text import is_regular_file, read_bytes

CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
PICKLED = "pytorch_model.bin"
_INDEX = ".index.json"  # after the name of the file that is stored in shards
_SHARD = re.compile(r"\w[\w.-]*")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # their names -> nmtkit's
# Options of generation that change the output and that nmtkit lacks, with the values without effect, besides null.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    **{"forced_bos_token_id": (), "forced_decoder_ids": ([],), "force_words_ids": ([],), "constraints": ([],)},
    **{"suppress_tokens": ([],), "begin_suppress_tokens": ([],), "sequence_bias": ({}, []), "stop_strings": ([],)},
    **{"repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "encoder_no_repeat_ngram_size": (0,)},
    **{"exponential_decay_length_penalty": (), "guidance_scale": (1.0,), "watermarking_config": ()},
    **{"token_healing": (False,), "penalty_alpha": (0,), "dola_layers": ()},
}
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
    if not is_regular_file(path):
        raise UserError(f"{path.name} is {'not a regular file' if path.exists() else 'missing'}")
    return read_bytes(path, limit)


def model_type(path: Path) -> str | None:
    """The architecture in the folder's config.json; None if there is none."""
    if not is_regular_file(path / CONFIG):
        return None
    kind = read_json(path / CONFIG).get("model_type")
    return kind if isinstance(kind, str) else None


def read_settings(folder: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of config.json over `defaults`, with the special tokens by generation_config.json if it exists.

    Raises UserError for options of generation, in either file, that nmtkit lacks.
    """
    config = read_json(folder / CONFIG)
    settings = {**defaults, **config}
    generation = settings | _read_generation(folder)
    for name in ("eos_token_id", "decoder_start_token_id"):
        chosen, stated = _only(generation[name]), _only(config.get(name))
        settings[name] = chosen if stated is None else stated
        if chosen not in (None, settings[name]):
            raise UserError(f"{name} is {stated!r:.40} in {CONFIG}, but {chosen!r:.40} in {GENERATION_CONFIG}")
    for name, harmless in _WITHOUT_EFFECT.items():
        if generation.get(name) not in (None, *harmless):
            raise UserError(f"{name} is {generation[name]!r:.60}, which is not supported")
    if generation.get("forced_eos_token_id") not in (None, generation["eos_token_id"], settings["eos_token_id"]):
        raise UserError("forced_eos_token_id is not eos_token_id, which is not supported")
    never = [[settings["pad_token_id"]], [settings["decoder_start_token_id"]]]
    if any(words not in never for words in generation.get("bad_words_ids") or ()):
        raise UserError("bad_words_ids bans more than pad_token_id, which is not supported")
    return settings


def _only(token: Any) -> Any:
    """An id, which may be stored as a list of one."""
    return token[0] if isinstance(token, list) and len(token) == 1 else token


def _read_generation(folder: Path) -> dict[str, Any]:
    return read_json(folder / GENERATION_CONFIG) if (folder / GENERATION_CONFIG).exists() else {}


def transformer_config(settings: Mapping[str, Any], positions: str) -> TransformerConfig:
    """The options of the model by config.json, in which no value is missing. UserError for those that nmtkit lacks."""
    for name in ("ffn_dim", "attention_heads"):
        if settings[f"encoder_{name}"] != settings[f"decoder_{name}"]:
            raise UserError(f"{CONFIG}: encoder_{name} and decoder_{name} differ, which is not supported")
    activation = settings["activation_function"]
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise UserError(f"{CONFIG}: activation_function is {activation!r:.40}, only {supported} are supported")
    if settings["d_model"] % settings["encoder_attention_heads"]:
        raise UserError(f"{CONFIG}: d_model is not a multiple of encoder_attention_heads")
    same = ("encoder_layers", "decoder_layers", "d_model", "dropout", "attention_dropout", "activation_dropout")
    return TransformerConfig(
        **{name: settings[name] for name in same},
        d_ff=settings["encoder_ffn_dim"],
        heads=settings["encoder_attention_heads"],
        activation=_ACTIVATIONS[activation],
        positions=positions,
    )


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
    return named_tensors(load_pickled(path))


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
            raise UserError(f"{index}: {file!r:.60} is not the name of a file in this folder")
        if not is_regular_file(folder / file):
            raise UserError(f"{file}, listed in {index}, is missing or not a regular file")
        found = read(folder / file)
        if found.keys() != {name for name, place in places.items() if place == file}:
            raise UserError(f"{file} has other weights than {index} says: damaged")
        weights |= found
    return weights


def search_options(folder: Path) -> dict[str, float | str]:
    """The options of nmt-generate by name that search like the folder's defaults of generation.

    Values that it would refuse are left out. Raises UserError if the files are damaged.
    """
    with as_user_errors(folder, "a model of Hugging Face"):
        defaults = read_json(folder / CONFIG) | _read_generation(folder)
    numbers = {name: value for name, value in defaults.items() if type(value) in (int, float)}
    penalty = {"length_penalty_form": "power", "length_penalty": numbers.get("length_penalty", 1.0)}
    groups: list[dict[str, Any]] = [{"beam": numbers.get("num_beams", 1)}, penalty]
    if "max_length" in numbers:  # counts the start token and EOS
        groups.append({"max_len_a": 0, "max_len_b": max(0, numbers["max_length"] - 2)})
    return {name: value for group in groups if _is_accepted(group) for name, value in group.items()}


def _is_accepted(options: Mapping[str, Any]) -> bool:
    """Whether nmt-generate accepts these values, which other programs may have checked less strictly."""
    try:
        SearchConfig(**options)
        return all(math.isfinite(value) for value in options.values() if not isinstance(value, str))
    except (UserError, OverflowError):
        return False
