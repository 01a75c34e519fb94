"""Import of fairseq checkpoints: translation models of the architecture `transformer`.

Reads checkpoints of all releases, with old and new names of weights, and options as `args` or `cfg`.
"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq_tokenizers import fairseq_sides
from nmtkit.conversion.pickled import ForeignObject, load_pickled, named_tensors
from nmtkit.conversion.weights import ForeignWeights, convert
from nmtkit.decoding.config import SearchConfig
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.storage.archive import as_user_errors
from nmtkit.wording import quoted

_BASE = {
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "activation_fn": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
_BIG = {
    **{"encoder_embed_dim": 1024, "encoder_ffn_embed_dim": 4096, "dropout": 0.3},
    **{"encoder_attention_heads": 16, "decoder_attention_heads": 16},
}
_IWSLT = {"encoder_ffn_embed_dim": 1024, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
_TINY = {
    **{"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 64, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
}
_PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
_ARCHITECTURES: dict[str, dict[str, Any]] = {  # options that differ from `transformer`
    "transformer": {},
    "transformer_tiny": _TINY,
    "transformer_iwslt_de_en": _IWSLT,
    "transformer_wmt_en_de": {},
    "transformer_vaswani_wmt_en_de_big": _BIG,
    "transformer_vaswani_wmt_en_fr_big": {**_BIG, "dropout": 0.1},
    "transformer_wmt_en_de_big": {**_BIG, "attention_dropout": 0.1},
    "transformer_wmt_en_de_big_t2t": {**_BIG, **_PRE_NORM, "attention_dropout": 0.1, "activation_dropout": 0.1},
}
_UNSUPPORTED = (
    *("adaptive_softmax_cutoff", "adaptive_input", "layernorm_embedding", "cross_self_attention"),
    *("no_cross_attention", "no_token_positional_embeddings", "no_decoder_final_norm", "character_embeddings"),
    *("encoder_layers_to_keep", "decoder_layers_to_keep"),
)
_ACTIVATIONS = ("relu", "gelu", "swish")  # fairseq's gelu_accurate and gelu_fast are approximations
_SEARCH = {"beam": "beam", "lenpen": "length_penalty", "min_len": "min_len"}  # options of fairseq-generate
_NO_WEIGHT = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"  # from release 0.12.2, which never trains them
)
_OLD_NORMS = {  # norms of a layer by number
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_OLD_NORM = re.compile(r"((encoder|decoder)\.layers\.\d+\.)layer_norms\.(\d)\.(weight|bias)")
_OUTPUT = "decoder.output_projection.weight"
_OLD_ATTENTION = re.compile(r"(.+_attn\.)in_proj_(weight|bias)")


def from_fairseq(path: Path, options: ImportConfig) -> Checkpoint:
    """Read a fairseq checkpoint without its training state. `fairseq_sides` reads dictionaries and codes.

    Runs no code from the file. Raises UserError if the file is damaged, or if the model has a feature that nmtkit's
    Transformer lacks.
    """
    kind = "a fairseq checkpoint"
    with as_user_errors(path, kind):
        content = load_pickled(path)
        given = _options(content)
        tensors = named_tensors(content["model"])
        config = _config(given)
    languages = options.languages(given.get("source_lang"), given.get("target_lang"))
    sides = fairseq_sides(path.parent, languages, options)
    with as_user_errors(path, kind):
        weights = ForeignWeights(_with_new_names(tensors))
        weights.drop(lambda name: _NO_WEIGHT.fullmatch(name) is not None)
        shares = bool(given.get("share_all_embeddings"))
        ties = shares or bool(given.get("share_decoder_input_output_embed"))
        checkpoint = convert(weights, config, languages, sides, shares=shares, ties=ties, output=_OUTPUT)
        return replace(checkpoint, search=_search(given))


def _options(content: Any) -> dict[str, Any]:
    """Return the options, completed by the defaults of the architecture. Raises UserError for unsupported ones."""
    if not isinstance(content, dict) or "model" not in content:
        raise UserError("not a fairseq checkpoint: it has no `model`")
    given = _fields(content.get("args"))
    cfg = _fields(content.get("cfg"))
    if not given and not cfg:
        raise UserError("not a fairseq checkpoint: it has neither `args` nor `cfg`")
    model, task = _fields(cfg.get("model")), _fields(cfg.get("task"))
    task_name = given.get("task") or task.get("_name") or "translation"
    given = {**task, **given, **model}
    arch = given.get("arch") or given.get("_name")
    if arch not in _ARCHITECTURES:
        raise UserError(f"the architecture {quoted(arch)} is not supported, only {', '.join(_ARCHITECTURES)}")
    if task_name != "translation":
        raise UserError(f"the task {quoted(task_name)} is not supported, only translation")
    for name in _UNSUPPORTED:
        if given.get(name):
            raise UserError(f"the option {name} is not supported")
    return {**_BASE, **_ARCHITECTURES[arch], **given}


def _search(given: Mapping[str, Any]) -> dict[str, float]:
    """Convert `eval_bleu_args`, the recorded options of the search during validation."""
    recorded = json.loads(given.get("eval_bleu_args") or "{}")
    found = {ours: recorded[name] for name, ours in _SEARCH.items() if name in recorded}
    if "max_len_a" in recorded or "max_len_b" in recorded:
        a, b = recorded.get("max_len_a", 0), recorded.get("max_len_b", 200)  # fairseq's defaults
        found |= {"max_len_a": a, "max_len_b": int(a + b)}  # fairseq's source length counts EOS
    SearchConfig(**found)
    return found


def _fields(options: object) -> dict[str, Any]:
    """Return options by name, from any form in which fairseq releases store them; empty for anything else."""
    options = vars(options) if isinstance(options, argparse.Namespace) else _value(options)
    return {name: _value(value) for name, value in options.items()} if isinstance(options, dict) else {}


def _value(value: Any) -> Any:
    """Return the value, dict or list in a node of omegaconf; other values unchanged."""
    if not isinstance(value, ForeignObject):
        return value
    return vars(value).get("_content", vars(value).get("_val"))


def _config(given: Mapping[str, Any]) -> TransformerConfig:
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos"):
        value = given[f"encoder_{name}"]
        if given.get(f"decoder_{name}", value) != value:
            raise UserError(f"encoder_{name} and decoder_{name} differ, which is not supported")
    activation = given["activation_fn"]
    if activation not in _ACTIVATIONS:
        raise UserError(f"the activation {quoted(activation)} is not supported, only {', '.join(_ACTIVATIONS)}")
    return TransformerConfig(
        encoder_layers=given["encoder_layers"],
        decoder_layers=given["decoder_layers"],
        d_model=given["encoder_embed_dim"],
        d_ff=given["encoder_ffn_embed_dim"],
        heads=given["encoder_attention_heads"],
        dropout=given["dropout"],
        attention_dropout=given["attention_dropout"],
        activation_dropout=given["activation_dropout"] or given.get("relu_dropout") or 0.0,
        activation=activation,
        norm="pre" if given["encoder_normalize_before"] else "post",
        positions="learned" if given["encoder_learned_pos"] else "fairseq",
        embedding_scale=1.0 if given.get("no_scale_embedding") else None,
    )


def _with_new_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if norm := _OLD_NORM.fullmatch(name):
            prefix, stack, number, part = norm.groups()
            renamed[f"{prefix}{_OLD_NORMS[stack][int(number)]}.{part}"] = tensor
        elif attention := _OLD_ATTENTION.fullmatch(name):
            for letter, block in zip("qkv", torch.chunk(tensor, 3), strict=True):
                renamed[f"{attention[1]}{letter}_proj.{attention[2]}"] = block
        else:
            renamed[_OUTPUT if name == "decoder.embed_out" else name] = tensor
    return renamed
