"""Export to a Marian model of Hugging Face's transformers, which `nmtkit.conversion.marian` can import.

The ids are in the order of OPUS-MT: EOS is 0, UNK is 1, and `<pad>`, the start token, is last and has the row of BOS. A
model with language codes returns to its own family.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import SAFETENSORS_FILE, Checkpoint
from nmtkit.conversion import marian
from nmtkit.conversion.folder import export_folder
from nmtkit.conversion.heads import with_full_heads
from nmtkit.conversion.huggingface import CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, added_tokens
from nmtkit.conversion.huggingface_settings import generation_settings, settings_of
from nmtkit.conversion.known import MARIAN, check_known
from nmtkit.conversion.multilingual_export import Parts, multilingual_parts
from nmtkit.conversion.safetensors import serialize_tensors
from nmtkit.conversion.weights import MASK, alternating, permute_width, stack_tensors
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.weights import as_tensors
from nmtkit.text.spm_model import SPLIT_SYMBOL, read_symbols
from nmtkit.text.tokenizer import SENTENCEPIECE_KINDS
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, SPECIALS, UNK

_MAX_TOKENS = 512  # default limit of sources and outputs, as in OPUS-MT: longer ones raise an error


def to_huggingface(checkpoint: Checkpoint, folder: Path, weights: str = "auto", *, replace: bool = False) -> None:
    """Write a checkpoint atomically as a folder for Hugging Face transformers.

    It is NLLB, M2M-100 or mBART-50 if its target tokenizer has language codes, otherwise a Marian model. `weights` is
    as in `WeightsConfig`. Raises UserError if the package safetensors is missing, if the folder exists without
    `replace`, or if that architecture does not support the model.
    """
    convert = multilingual_parts if checkpoint.target.language_codes else _marian_parts
    tensors, json_files, files = convert(checkpoint.without_training(weights))
    with export_folder(folder, replace) as staging:
        (staging / SAFETENSORS_FILE).write_bytes(serialize_tensors(tensors))
        for name, values in json_files.items():
            text = json.dumps(values, indent=2, ensure_ascii=False)
            (staging / name).write_text(f"{text}\n", encoding="utf-8")
        for name, content in files.items():
            (staging / name).write_bytes(content)


def _marian_parts(checkpoint: Checkpoint) -> Parts:
    config = check_known(checkpoint.model_config, MARIAN, "Hugging Face's Marian")
    for tokenizer in (checkpoint.source, checkpoint.target):
        if tokenizer.kind not in SENTENCEPIECE_KINDS:
            raise UserError(f"Hugging Face's Marian needs SentencePiece models, not the tokenizer {tokenizer.kind}")
    checkpoint = with_full_heads(checkpoint, config)
    orders = _id_orders(checkpoint)
    models = {marian.SOURCE_MODEL: checkpoint.source.model, marian.TARGET_MODEL: checkpoint.target.model}
    return named_tensors(checkpoint, config, orders), _json_files(checkpoint, config, orders), models


def _id_orders(checkpoint: Checkpoint) -> tuple[list[int], list[int]]:
    """Return nmtkit's id for each id of Marian, for both sides. Marian's start token has the last id, or 2 if the
    vocabularies have different sizes."""
    source, target = (list(range(len(SPECIALS), len(side.vocab))) for side in (checkpoint.source, checkpoint.target))
    if checkpoint.joined:
        return ([EOS, UNK, *source, BOS],) * 2
    return [EOS, UNK, BOS, *source], [EOS, UNK, BOS, *target]


def named_tensors(
    checkpoint: Checkpoint, config: TransformerConfig, orders: tuple[Sequence[int], Sequence[int]]
) -> dict[str, Tensor]:
    """Return the weights by the names of `MarianMTModel`. `orders` has nmtkit's ids in Marian's order, per side."""
    weights = permute_width(as_tensors(checkpoint.weights), torch.argsort(alternating(config.d_model)))
    source, target = map(torch.tensor, orders)
    bias = weights.get("projection_bias", torch.zeros(len(checkpoint.target.vocab)))[target]
    bias[[theirs for theirs, ours in enumerate(orders[1]) if ours in NEVER_OUTPUT]] = MASK
    tensors = {"final_logits_bias": bias.unsqueeze(0)}
    embedding = weights["target_embedding.weight"][target]
    if "source_embedding.weight" in weights:
        tensors["model.encoder.embed_tokens.weight"] = weights["source_embedding.weight"][source]
        tensors["model.decoder.embed_tokens.weight"] = embedding
    else:
        tensors["model.shared.weight"] = embedding
    if "projection.weight" in weights:
        tensors["lm_head.weight"] = weights["projection.weight"][target]
    return tensors | {f"model.{name}": tensor for name, tensor in stack_tensors(weights, config)}


def _json_files(
    checkpoint: Checkpoint, config: TransformerConfig, orders: tuple[Sequence[int], Sequence[int]]
) -> dict[str, dict[str, Any]]:
    start, eos = orders[1].index(BOS), orders[1].index(EOS)
    ids = {"pad_token_id": start, "decoder_start_token_id": start, "eos_token_id": eos, "forced_eos_token_id": eos}
    vocabulary = piece_ids(checkpoint.source.vocab.pieces, orders[0])
    added: dict[str, Any] = {}
    if symbols := read_symbols(checkpoint.source.model, SPLIT_SYMBOL):  # imported models have them on both sides
        special = marian.SPECIAL_PIECES
        added = added_tokens({token: vocabulary[token] for token in (*special, *symbols)}, special)
    files = {
        CONFIG: settings_of(config)
        | {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "vocab_size": len(checkpoint.source.vocab) - 1,  # without PAD, since Marian uses one id as PAD and BOS
            "decoder_vocab_size": len(checkpoint.target.vocab) - 1,
            "share_encoder_decoder_embeddings": "source_embedding.weight" not in checkpoint.weights,
            "tie_word_embeddings": "projection.weight" not in checkpoint.weights,
            "max_position_embeddings": _MAX_TOKENS,
            "bos_token_id": None,
            **ids,
        },
        GENERATION_CONFIG: {**ids, "max_length": _MAX_TOKENS, **generation_settings(checkpoint.search)},
        TOKENIZER_CONFIG: {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": checkpoint.source_language,
            "target_lang": checkpoint.target_language,
            "separate_vocabs": not checkpoint.joined,
            "model_max_length": _MAX_TOKENS,
            **added,
        },
        marian.VOCABULARY: vocabulary,
    }
    if not checkpoint.joined:
        files[marian.TARGET_VOCABULARY] = piece_ids(checkpoint.target.vocab.pieces, orders[1])
    return files


def piece_ids(pieces: Sequence[str], order: Sequence[int]) -> dict[str, int]:
    """Return Marian's ids by piece."""
    names = {EOS: marian.EOS_PIECE, UNK: marian.UNK_PIECE, BOS: marian.PAD_PIECE}
    return {names.get(ours, pieces[ours]): theirs for theirs, ours in enumerate(order)}
