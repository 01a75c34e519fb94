"""Writes an FSMT model of transformers as a checkpoint of fairseq, which has the same architecture."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.text.moses_bpe import FINAL_MARK, INNER_MARK

_SPECIALS = 4  # ids that both toolkits reserve


def write_fairseq(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: Any,
    pieces: Sequence[Sequence[str]],
    merges: Sequence[str],
    *,
    old: bool = False,
    **changes: Any,
) -> Path:
    """Write `model.pt` with its dictionaries and BPE codes; return its path.

    `weights` and `config` are those of FSMT, `pieces` the vocabularies of source and target. With `old`, the file has
    the form of early releases. `changes` are options of fairseq to replace.
    """
    folder.mkdir(exist_ok=True)
    options = fairseq_options(config) | changes
    content: dict[str, Any] = {"model": fairseq_weights(weights, old), "extra_state": {"epoch": 3}}
    if old:
        content["args"] = argparse.Namespace(**options)
    else:
        task = {key: options.pop(key) for key in ("source_lang", "target_lang")}
        task["_name"] = options.pop("task")
        content |= {"args": None, "cfg": {"model": argparse.Namespace(**options), "task": task}}
    torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=not old)
    for language, vocabulary in zip(config.langs, pieces, strict=True):
        lines = [f"{fairseq_piece(piece)} {9 + number}\n" for number, piece in enumerate(vocabulary[_SPECIALS:])]
        (folder / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "bpecodes").write_text("".join(f"{line} {9}\n" for line in merges), encoding="utf-8")
    return folder / "model.pt"


def fairseq_piece(piece: str) -> str:
    """A piece of FSMT, which marks the end of a word, as a piece of fairseq, which marks all other places."""
    return piece.removesuffix(FINAL_MARK) if piece.endswith(FINAL_MARK) else piece + INNER_MARK


def fairseq_weights(weights: Mapping[str, Tensor], old: bool = False) -> dict[str, Tensor]:
    """The state dict as fairseq writes it, by the names of today or of its early releases."""
    state = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    state = {name: tensor for name, tensor in state.items() if "embed_positions" not in name}
    for stack in ("encoder", "decoder"):
        state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        state[f"{stack}.version"] = torch.tensor([3.0])
    return _with_old_names(state) if old else state


def fairseq_options(config: Any) -> dict[str, Any]:
    """The options of fairseq for a model with this FSMTConfig."""
    return {
        "arch": "transformer",
        "task": "translation",
        "source_lang": config.langs[0],
        "target_lang": config.langs[1],
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_embed_dim": config.d_model,
        "decoder_embed_dim": config.d_model,
        "encoder_ffn_embed_dim": config.encoder_ffn_dim,
        "decoder_ffn_embed_dim": config.decoder_ffn_dim,
        "encoder_attention_heads": config.encoder_attention_heads,
        "decoder_attention_heads": config.decoder_attention_heads,
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "activation_fn": config.activation_function,
        "no_scale_embedding": not config.scale_embedding,
        "adaptive_softmax_cutoff": None,
        "dropout": config.dropout,
    }


def _with_old_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with joined attention projections, numbered norms, and the output as `embed_out`."""
    renamed: dict[str, Tensor] = {}
    norms = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1}
    for name, tensor in state.items():
        prefix, _, end = name.rpartition("_attn.")
        module, _, part = name.rpartition(".")
        layer, _, kind = module.rpartition(".")
        if end.startswith(("k_proj", "v_proj")):
            continue
        if end.startswith("q_proj"):
            blocks = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            renamed[f"{prefix}_attn.in_proj_{part}"] = torch.cat(blocks)
        elif kind.endswith("layer_norm"):
            last = 1 if name.startswith("encoder") else 2
            renamed[f"{layer}.layer_norms.{norms.get(kind, last)}.{part}"] = tensor
        else:
            renamed["decoder.embed_out" if name == "decoder.output_projection.weight" else name] = tensor
    return renamed
