"""Import of CTranslate2 models, which nmtkit or other toolkits have exported."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.console.log import logger
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.ctranslate2_file import read_model
from nmtkit.conversion.fairseq_tokenizers import joint, refuse_language_codes, tokenizers_of
from nmtkit.conversion.folder import read_json, read_object, read_part
from nmtkit.conversion.weights import (
    Embeddings,
    ForeignWeights,
    Parts,
    Side,
    assemble,
    stack_modules,
    with_positions,
)
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.model.positions import sinusoids
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.languages import side_names
from nmtkit.text.moses_bpe import MosesBpeTokenizer
from nmtkit.text.tokenizer import SentencePieceTokenizer, Tokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary, refuse_repeated_pieces
from nmtkit.wording import quoted

MODEL_FILE = "model.bin"
_ACTIVATIONS = ("relu", "gelu approximated by tanh", "swish", "gelu", "gelu approximated by a sigmoid", "tanh")
_SUPPORTED = ("relu", "swish", "gelu")
_SPM_FILES = (("spm.model",), ("source.spm", "target.spm"), ("sentencepiece.model",))
LAYER: Parts = {  #: names in a decoder layer
    "self_attention.qkv": ("self_attention.linear_0",),
    "self_attention.out": ("self_attention.linear_1",),
    "around_self_attention.norm": ("self_attention.layer_norm",),
    "cross_attention.q": ("attention.linear_0",),
    "cross_attention.kv": ("attention.linear_1",),
    "cross_attention.out": ("attention.linear_2",),
    "around_cross_attention.norm": ("attention.layer_norm",),
    "feed_forward.inner": ("ffn.linear_0",),
    "feed_forward.outer": ("ffn.linear_1",),
    "around_feed_forward.norm": ("ffn.layer_norm",),
}
LAYER_FORM = "{}.layer_{}."  #: stack and number of a layer
_LINEAR = re.compile(r".+\.linear_\d\.weight")  # its bias is optional
_WITHOUT_EFFECT = re.compile(r"decoder\.alignment_(layer|heads)|encoder\.embeddings_merge")  # for one embedding
_COMPUTED_POSITIONS = 1024  # number of learned positions that replace CTranslate2's sinusoids
_SOURCE, _OLD_SOURCE = "encoder.embeddings_0.weight", "encoder.embeddings.weight"
_TARGET, _OUTPUT, _BIAS = "decoder.embeddings.weight", "decoder.projection.weight", "decoder.projection.bias"
_POSITIONS = tuple(f"{stack}.position_encodings.encodings" for stack in ("encoder", "decoder"))


def from_ctranslate2(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read the folder of a CTranslate2 model. Weights in int8 and int16 become float32.

    The format stores neither languages nor tokenizers, so `options` provide them. SentencePiece models with usual names
    are found in the folder; without any, the model translates segmented text. Raises UserError if a file is missing or
    damaged, or if the model has a feature that nmtkit's Transformer lacks.
    """
    languages = options.languages()
    with as_user_errors(folder, "a CTranslate2 model"):
        settings = read_object(folder / "config.json")
        matrices, attributes = _split(read_model(folder / MODEL_FILE), folder)
        has_start = not attributes.pop("decoder.start_from_zero_embedding", False)
        vocabularies = [_read_pieces(folder, side) for side in ("source", "target")]
        _check_settings(settings, vocabularies, has_start)
        pairs = [_own_ids(pieces, settings, has_start) for pieces in vocabularies]
        ours = joint((pairs[0][0], pairs[1][0]))
        tokenizers = tokenizers_beside(folder, ours, languages, options)
        source, target = (
            Side(tokenizer, rows, len(pieces))
            for tokenizer, (_, rows), pieces in zip(tokenizers, pairs, vocabularies, strict=True)
        )
        config = replace(
            _take_config(matrices, attributes),
            source_end=_reads_source_end(settings, has_start),
            norm_epsilon=settings.get("layer_norm_epsilon") or 1e-5,
            embedding_norm="encoder.layernorm_embedding.weight" in matrices,
        )
        weights = ForeignWeights(matrices)
        others = weights.take_modules(stack_modules(config, LAYER, LAYER_FORM))
        tables = _take_positions(weights, config.d_model)
        bias = weights.take(_BIAS) if _BIAS in weights else None
        embeddings = Embeddings(weights.take(_SOURCE), weights.take(_TARGET), weights.take(_OUTPUT), bias)
        weights.refuse_rest()
        config, learned, halves = with_positions(config, *tables)
        return assemble(config, languages, (source, target), embeddings, others | learned, halves=halves)


def _check_settings(settings: Mapping[str, Any], vocabularies: Sequence[list[str]], has_start: bool) -> None:
    """Raise UserError for settings that nmtkit does not support or that do not fit the vocabularies.

    Without `has_start`, a zero vector begins the output, as in Marian models, so `decoder_start_token` has no effect.
    """
    if settings.get("add_source_bos"):
        raise UserError("config.json: add_source_bos is set, which is not supported")
    needed_in = {"unk_token": vocabularies, "eos_token": vocabularies}
    if has_start:
        needed_in["decoder_start_token"] = vocabularies[1:]
    for setting, needing in needed_in.items():
        if any(settings.get(setting) not in pieces for pieces in needing):
            token = quoted(settings.get(setting))
            raise UserError(f"config.json: {setting} is {token}, which is not in the vocabulary")


def _reads_source_end(settings: Mapping[str, Any], has_start: bool) -> bool:
    """Whether the model reads </s> at the end of each source.

    Without `add_source_eos`, models of OpenNMT-py, whose outputs begin with <s>, do not read it. For models of
    transformers, the caller of CTranslate2 adds it.
    """
    if settings.get("add_source_eos"):
        return True
    if has_start and settings.get("decoder_start_token") == settings.get("bos_token", "<s>"):
        return False
    logger.warning("config.json: add_source_eos is not set: assuming that the caller adds </s>, as with transformers")
    return True


def _read_pieces(folder: Path, side: str) -> list[str]:
    """Read the pieces of a side by CTranslate2's ids, from the first file that exists, as CTranslate2 does."""
    for name in ("shared_vocabulary", f"{side}_vocabulary"):
        for path in (folder / f"{name}.json", folder / f"{name}.txt"):
            if not path.exists():
                continue
            is_json = path.suffix == ".json"
            pieces = read_json(path) if is_json else read_part(path).decode().removesuffix("\n").split("\n")
            if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
                raise UserError(f"{path.name} is not a list of pieces")
            refuse_repeated_pieces(pieces)
            return pieces
    raise UserError(f"there is neither {side}_vocabulary.json nor shared_vocabulary.json (or .txt)")


def _own_ids(pieces: list[str], settings: Mapping[str, Any], has_start: bool) -> tuple[Vocabulary, list[int | None]]:
    """Convert pieces to a `Vocabulary`, with the CTranslate2 id of each. The decoder's start token becomes BOS."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    unk, start, eos = (settings[name] for name in ("unk_token", "decoder_start_token", "eos_token"))
    pad = next((name for name in ("<pad>", "<blank>") if name in ids), None)  # if both exist, <blank> is a piece
    special = {unk, eos, settings.get("bos_token"), pad, *SPECIALS}
    rest = [number for number, piece in enumerate(pieces) if piece not in special]
    vocabulary = Vocabulary([*SPECIALS, *(pieces[number] for number in rest)])
    bos = ids.get(start) if has_start else None
    return vocabulary, [None if pad is None else ids[pad], ids[unk], bos, ids[eos], *rest]


def tokenizers_beside(
    folder: Path, vocabularies: tuple[Vocabulary, Vocabulary], languages: tuple[str, str], options: ImportConfig
) -> tuple[Tokenizer, Tokenizer]:
    """Create tokenizers for vocabularies from the SentencePiece models in `options`, or from files in a folder.

    Shared vocabularies must be one object. Without a SentencePiece model, the tokenizers expect segmented text.
    """
    source, target = vocabularies
    paths = options.spm_model or _sentencepiece_files(folder, languages)
    if len(paths) == (1 if source is target else 2):  # the models may define the vocabularies, as in nmtkit's exports
        with as_user_errors(paths[0], "a SentencePiece model"):
            own = [SentencePieceTokenizer(read_part(path)) for path in paths]
        if (own[0].vocab, own[-1].vocab) == vocabularies:
            return own[0], own[-1]
    settings = [folder / f"bpe.{side}.json" for side in side_names(languages)]  # in nmtkit's own exports
    if not paths and all(path.exists() for path in settings):
        contents = (read_part(path) for path in settings)
        return MosesBpeTokenizer(source, next(contents)), MosesBpeTokenizer(target, next(contents))
    if not paths:
        refuse_language_codes(target, None)
    return tokenizers_of(vocabularies, paths)


def _sentencepiece_files(folder: Path, languages: tuple[str, str]) -> tuple[Path, ...]:
    """Find SentencePiece models with usual names in a folder: one for both sides, one each, or none."""
    by_side = tuple(f"spm.{side}.model" for side in side_names(languages))
    for names in (*_SPM_FILES, by_side):
        paths = tuple(folder / name for name in names)
        if all(path.exists() for path in paths):
            return paths
    return ()


def _split(variables: Mapping[str, Tensor], folder: Path) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Split variables into dequantized weights, with torch-like names, and attributes."""
    weights, attributes = dict[str, Tensor](), dict[str, float]()
    is_quantized = False
    for full, value in variables.items():
        name = full.replace("/", ".").replace(".gamma", ".weight").replace(".beta", ".bias")
        if value.dim() == 0 and not name.endswith("weight_scale"):
            attributes[name] = value.item()
        elif (scale := variables.get(f"{full}_scale")) is not None:
            is_quantized = True
            weights[name] = value / scale.float().reshape(-1, *[1] * (value.dim() - 1))
        elif not name.endswith("weight_scale"):
            weights[name] = value
    if is_quantized:
        logger.warning("%s is quantized: the imported weights have the rounding errors of int8 or int16", folder)
    if _OLD_SOURCE in weights:
        weights[_SOURCE] = weights.pop(_OLD_SOURCE)
    for name in [name for name in weights if _LINEAR.fullmatch(name)]:
        weights.setdefault(name.removesuffix("weight") + "bias", weights[name].new_zeros(len(weights[name])))
    return weights, attributes


def _take_config(weights: Mapping[str, Tensor], attributes: Mapping[str, float]) -> TransformerConfig:
    """Read the options that weights and attributes determine. Raises UserError for unsupported attributes."""
    left = {name: value for name, value in attributes.items() if not _WITHOUT_EFFECT.fullmatch(name)}

    def both(name: str) -> float:
        values = [left.pop(f"{stack}.{name}", None) for stack in ("encoder", "decoder")]
        if values[0] is None or values[0] != values[1]:
            raise UserError(f"{name} is {values[0]} in the encoder, but {values[1]} in the decoder")
        return values[0]

    heads, pre_norm, number, scale = map(both, ("num_heads", "pre_norm", "activation", "scale_embeddings"))
    activation = _ACTIVATIONS[int(number)]
    if activation not in _SUPPORTED:
        raise UserError(f"the activation {activation} is not supported, only {', '.join(_SUPPORTED)}")
    for name, value in left.items():
        if value:
            raise UserError(f"{name} is {value:g}, which is not supported")
    factor: float | None = scale
    if isinstance(scale, int):  # a boolean, not a number
        factor = None if scale else 1.0
    return TransformerConfig(
        encoder_layers=_layers(weights, "encoder"),
        decoder_layers=_layers(weights, "decoder"),
        d_model=weights[_TARGET].size(-1),
        d_ff=weights["encoder.layer_0.ffn.linear_0.weight"].size(0),
        heads=int(heads),
        activation=activation,
        norm="pre" if pre_norm else "post",
        embedding_scale=factor,
    )


def _layers(weights: Mapping[str, Tensor], stack: str) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith(f"{stack}.layer_") and name.count(".") > 2})


def _take_positions(weights: ForeignWeights, d_model: int) -> tuple[Tensor, Tensor]:
    """Take the position tables (positions, D) of both stacks. If missing, use CTranslate2's sinusoids from 1."""
    if any(name in weights for name in _POSITIONS):
        source, target = map(weights.take, _POSITIONS)
        return source, target
    alternating = sinusoids(_COMPUTED_POSITIONS + 1, d_model, "marian")[1:]
    table = torch.cat([alternating[:, 0::2], alternating[:, 1::2]], dim=1)
    logger.warning("the model uses CTranslate2's sinusoids: they become learned positions, which end at %d", len(table))
    return table, table.clone()
