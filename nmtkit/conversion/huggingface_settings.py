"""Reads the options of a model and of its generation from the files of Hugging Face's transformers."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nmtkit.console.log import logger
from nmtkit.conversion.folder import read_object
from nmtkit.conversion.huggingface import CONFIG, GENERATION_CONFIG, read_optional
from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.storage.archive import as_user_errors
from nmtkit.wording import quoted

DEFAULTS: dict[str, Any] = {  #: of most models in transformers
    **{"d_model": 1024, "activation_function": "relu", "scale_embedding": True, "tie_word_embeddings": True},
    **{f"{stack}_layers": 12 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 4096 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 16 for stack in ("encoder", "decoder")},
    **{"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0},
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # name in transformers -> in nmtkit
# Generation options that change the output and that nmtkit does not support, each with the values, other than null,
# that have no effect. A model with a different value is rejected.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    **{"forced_decoder_ids": ([],), "force_words_ids": ([],), "constraints": ([],)},
    **{"suppress_tokens": ([],), "begin_suppress_tokens": ([],), "sequence_bias": ({}, []), "stop_strings": ([],)},
    **{"repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "encoder_no_repeat_ngram_size": (0,)},
    **{"exponential_decay_length_penalty": (), "guidance_scale": (1.0,), "watermarking_config": ()},
    **{"token_healing": (False,), "penalty_alpha": (0,), "dola_layers": ()},
}
# Search options that nmt-generate lacks, each with the values that have no effect. Other values cause a warning.
_OTHER_SEARCH: dict[str, tuple[object, ...]] = {
    **{"do_sample": (False,), "num_beam_groups": (0, 1), "diversity_penalty": (0,)}
}
Options = dict[str, float | str]  # of nmt-generate, by name
# Options of nmt-generate for a value in transformers, where lengths count the start token, and max_length also EOS.
_SEARCH: dict[str, Callable[[float], Options]] = {
    "num_beams": lambda beams: {"beam": beams},
    "length_penalty": lambda alpha: {"length_penalty_form": "power", "length_penalty": alpha},
    "max_new_tokens": lambda count: {"max_len_a": 0, "max_len_b": count - 1},
    "max_length": lambda length: {"max_len_a": 0, "max_len_b": max(0, length - 2)},
    "min_new_tokens": lambda count: {"min_len": count} if count > 0 else {},
    "min_length": lambda length: {"min_len": length - 1} if length > 1 else {},
    "no_repeat_ngram_size": lambda order: {"no_repeat_ngram": order} if order > 0 else {},
}
_OVERRIDES = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}


def read_settings(folder: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json over `defaults`, with the special tokens of generation_config.json if it exists.

    Raises UserError for generation options in either file that nmtkit does not support.
    """
    settings = {**defaults, **read_object(folder / CONFIG)}
    stated = read_optional(folder / GENERATION_CONFIG)
    generation = settings | {name: value for name, value in stated.items() if value is not None}
    for name in ("eos_token_id", "decoder_start_token_id", "forced_bos_token_id"):
        settings[name] = _only(generation.get(name))
    for name, harmless in _WITHOUT_EFFECT.items():
        if generation.get(name) not in (None, *harmless):
            raise UserError(f"{name} is {quoted(generation[name])}, which is not supported")
    if _only(generation.get("forced_eos_token_id")) not in (None, settings["eos_token_id"]):
        raise UserError("forced_eos_token_id is not eos_token_id, which is not supported")
    never = [[settings["pad_token_id"]], [settings["decoder_start_token_id"]]]
    if any(words not in never for words in generation.get("bad_words_ids") or ()):
        raise UserError("bad_words_ids bans more than pad_token_id, which is not supported")
    return settings


def _only(token: Any) -> Any:
    """Unwrap an id that may be stored as a list of one."""
    return token[0] if isinstance(token, list) and len(token) == 1 else token


def transformer_config(settings: Mapping[str, Any], positions: str) -> TransformerConfig:
    """Convert complete `settings` to the options of the model. Raises UserError for unsupported settings."""
    for name in ("ffn_dim", "attention_heads"):
        if settings[f"encoder_{name}"] != settings[f"decoder_{name}"]:
            raise UserError(f"{CONFIG}: encoder_{name} and decoder_{name} differ, which is not supported")
    activation = settings["activation_function"]
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise UserError(f"{CONFIG}: activation_function is {quoted(activation)}, only {supported} are supported")
    same = ("encoder_layers", "decoder_layers", "d_model", "dropout", "attention_dropout", "activation_dropout")
    return TransformerConfig(
        **{name: settings[name] for name in same},
        d_ff=settings["encoder_ffn_dim"],
        heads=settings["encoder_attention_heads"],
        activation=_ACTIVATIONS[activation],
        positions=positions,
        embedding_scale=None if settings["scale_embedding"] else 1.0,
    )


def settings_of(config: TransformerConfig) -> dict[str, Any]:
    """Return the settings for config.json that `transformer_config` converts back to the same options."""
    values: dict[str, Any] = {"dtype": "float32", "is_encoder_decoder": True}
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        values |= {f"{stack}_layers": layers, f"{stack}_ffn_dim": config.d_ff, f"{stack}_attention_heads": config.heads}
    return values | {
        "d_model": config.d_model,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.embedding_scale is None,
    }


def search_options(folder: Path, defaults: Mapping[str, Any], begun: int = 0) -> Options:
    """Return options of nmt-generate, by name, that search like the folder's generation defaults.

    Reads generation_config.json, or else config.json over `defaults`. Lengths there count `begun` forced tokens. Warns
    about settings that nmt-generate does not support. Raises UserError if the files are damaged.
    """
    with as_user_errors(folder, "a Hugging Face model"):
        file = folder / GENERATION_CONFIG
        stored = read_object(file) if file.exists() else {**defaults, **read_object(folder / CONFIG)}
        generation = {"length_penalty": 1.0} | {name: value for name, value in stored.items() if value is not None}
        lengths = [name for name in generation if re.fullmatch("m(ax|in)_(length|new_tokens)", name)]
        generation |= {name: generation[name] - begun for name in lengths}
        overridden = {other for name, other in _OVERRIDES.items() if name in generation}
        lacking = [name for name, none in _OTHER_SEARCH.items() if generation.get(name, none[0]) not in none]
        options: Options = {}
        for name, convert in _SEARCH.items():
            if name in generation and name not in overridden:
                found = convert(generation[name])
                try:
                    SearchConfig.from_dict(found)
                    options |= found
                except UserError:  # other programs check values less strictly
                    lacking.append(name)
    if lacking:
        named = ", ".join(f"{name} {quoted(generation[name])}" for name in lacking)
        logger.warning("nmt-generate does not support these search settings of the model: %s", named)
    return options


def generation_settings(search: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options of nmt-generate to settings of generation_config.json, as far as transformers has them."""
    config = SearchConfig.from_dict(search)
    settings: dict[str, Any] = {"num_beams": config.beam}
    if config.length_penalty_form == "power":
        settings["length_penalty"] = config.length_penalty
    if config.max_len_a == 0:
        settings["max_length"] = config.max_len_b + 2
    if config.min_len:
        settings["min_length"] = config.min_len + 1
    return settings | ({"no_repeat_ngram_size": n} if (n := config.no_repeat_ngram) else {})
