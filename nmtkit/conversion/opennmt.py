"""Import of Transformers of OpenNMT-py 2 and 3, and of its successor Eole.

All are pre-norm, their sources have no </s>, and their linear layers usually have no biases. They differ in names.
"""

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.console.log import logger
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.fairseq_tokenizers import joint, tokenizers_of
from nmtkit.conversion.folder import read_object
from nmtkit.conversion.pickled import ForeignObject, load_pickled, named_tensors
from nmtkit.conversion.safetensors import read_tensors
from nmtkit.conversion.weights import LAYER, ForeignWeights, Side, convert
from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig
from nmtkit.storage.archive import as_user_errors
from nmtkit.text.vocabulary import SPECIALS, Vocabulary
from nmtkit.wording import quoted

_SEARCH: dict[str, Any] = {
    **{"beam": 5, "length_penalty_form": "power", "length_penalty": 1.0, "max_len_a": 1.25, "max_len_b": 5}
}
_SEARCH_2: dict[str, Any] = {"beam": 5, "length_penalty": 0.0, "max_len_a": 0.0, "max_len_b": 100}  # of OpenNMT-py 2
_ACTIVATIONS = ("relu", "gelu")
_FIXED: dict[str, tuple[object, ...]] = {  # options, each with its supported values
    **{"encoder_type": ("transformer",), "decoder_type": ("transformer",), "model_task": ("seq2seq",)},
    **{"position_encoding": (True,), "position_encoding_type": ("SinusoidalInterleaved", None)},
    **{"max_relative_positions": (0, None), "sliding_window": (0, None), "layer_norm": ("standard",)},
    **{"parallel_residual": (False, None), "quant_type": ("", None), "copy_attn": (False, None)},
    **{"generator_function": ("softmax",), "self_attn_type": ("scaled-dot", "scaled-dot-flash")},
}
_RENAMED = tuple(  # names of OpenNMT-py, then of Eole -> the names of fairseq
    (re.compile(pattern), new)
    for pattern, new in (
        (r"coder\.transformer(_layers)?\.", "coder.layers."),
        (r"encoder\.embeddings\.make_embedding\.emb_luts\.0|src_emb\.embeddings", "encoder.embed_tokens"),
        (r"decoder\.embeddings\.make_embedding\.emb_luts\.0|tgt_emb\.embeddings", "decoder.embed_tokens"),
        (r"\.context_attn\.", ".encoder_attn."),
        (r"\.linear_(query|keys|values)\.", lambda found: f".{found[1][0]}_proj."),
        (r"\.final_linear\.", ".out_proj."),
        (r"\.(feed_forward\.layer_norm|post_attention_layernorm)\.", ".final_layer_norm."),
        (r"\.(layer_norm_2|precontext_layernorm)\.", ".encoder_attn_layer_norm."),
        (r"(layers\.\d+)\.(layer_norm|layer_norm_1|input_layernorm)\.", r"\1.self_attn_layer_norm."),
        (r"\.(feed_forward\.w_1|mlp\.gate_up_proj)\.", ".fc1."),
        (r"\.(feed_forward\.w_2|mlp\.down_proj)\.", ".fc2."),
    )
)
_MODULES = {module for part in LAYER.values() for module in part if not module.endswith("norm")}
_LINEAR = re.compile(rf".+\.({'|'.join(sorted(_MODULES))})\.weight")


def is_opennmt(path: Path) -> bool:
    """Whether a file is a checkpoint of OpenNMT-py, by the names in it."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        content = b"" if name is None else archive.read(name)
    return all(word in content for word in (b"vocab", b"opt", b"src")) and b"task" in content and b"cfg" not in content


def is_eole(path: Path) -> bool:
    """Whether a folder contains an Eole model."""
    return (path / "vocab.json").is_file() and any(path.glob("model.*.safetensors"))


def from_opennmt(path: Path, options: ImportConfig) -> Checkpoint:
    """Read a checkpoint of OpenNMT-py 2 or 3. Raises UserError if it is damaged or has an unsupported feature."""
    with as_user_errors(path, "an OpenNMT-py checkpoint"):
        content = load_pickled(path)
        given, vocabularies = vars(content["opt"]), content["vocab"]
        if "model" in content:
            tensors = named_tensors(content["model"])
            # Version 2 names the weights 0.weight and 0.bias.
            output = {name.removeprefix("0."): tensor for name, tensor in named_tensors(content["generator"]).items()}
            tensors |= {f"generator.{name}": tensor for name, tensor in output.items()}
        else:
            tensors = read_tensors(path.with_suffix(".safetensors"))
        search = _SEARCH
        if isinstance(vocabularies["src"], ForeignObject):  # a field of torchtext, in version 2
            vocabularies = {side: _pieces(vocabularies[side]) for side in ("src", "tgt")}
            search, given = _SEARCH_2, {**given, "hidden_size": given["enc_rnn_size"]}
        transforms = sorted(given.get("_all_transform", ()))
        return replace(_convert(given, tensors, vocabularies, transforms, options), search=search)


def _pieces(field: Any) -> Sequence[str]:
    """Return the pieces of a vocabulary of OpenNMT-py 2. Raises UserError for a source with features."""
    if len(field.fields) > 1:
        raise UserError("source features are not supported")
    pieces: Sequence[str] = field.fields[0][1].vocab.itos
    return pieces


def from_eole(folder: Path, options: ImportConfig) -> Checkpoint:
    """Read the folder of an Eole model. Raises UserError if it is damaged or has an unsupported feature."""
    with as_user_errors(folder, "an Eole model"):
        config, vocabularies = read_object(folder / "config.json"), read_object(folder / "vocab.json")
        own, training = config["model"], config.get("training", {})
        encoder, decoder = own.get("encoder", {}), own.get("decoder", {})
        given = {**training, **own, **own.get("embeddings", {}), **encoder, **decoder}
        given |= {"enc_layers": encoder.get("layers", 2), "dec_layers": decoder.get("layers", 2)}
        given["pos_ffn_activation_fn"] = given.get("mlp_activation_fn", "relu")
        given.setdefault("norm_eps", 1e-5)
        equal = ("heads", "hidden_size", "transformer_ff", "mlp_activation_fn", "norm_eps", "position_encoding_type")
        for name in equal:
            if encoder.get(name) != decoder.get(name):
                raise UserError(f"config.json: {name} differs between encoder and decoder, which is not supported")
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("model.*.safetensors")):
            tensors |= read_tensors(file)
        named = config.get("transforms_configs", {}).get("sentencepiece", {})
        names = [named.get(f"{side}_subword_model") or "" for side in ("src", "tgt")]
        files = tuple(folder / name.rpartition("/")[2] for name in names if name)
        if not options.spm_model and len(files) == 2 and all(map(Path.is_file, files)):
            options = replace(options, spm_model=files)
        return replace(_convert(given, tensors, vocabularies, config.get("transforms") or (), options), search=_SEARCH)


def _convert(
    given: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocabularies: Mapping[str, Any],
    transforms: Iterable[str],
    options: ImportConfig,
) -> Checkpoint:
    """Convert a model with options, weights and vocabularies by the names of OpenNMT-py. `transforms` are those that
    prepared its training text."""
    config = _config(given)
    languages = options.languages(given.get("src_lang") or None, given.get("tgt_lang") or None)
    if not options.spm_model:
        logger.info("transforms of its training text: %s", ", ".join(transforms) or "none")
    sides = _sides(vocabularies, options.spm_model)
    weights = ForeignWeights(_with_new_names(tensors))
    weights.drop(lambda name: name.endswith((".pe.pe", ".layer_scalar")))  # sinusoids; 1 in translation models
    shares, ties = "decoder.embed_tokens.weight" not in weights, "generator.weight" not in weights
    output, bias = "generator.weight", "generator.bias"
    return convert(weights, config, languages, sides, shares=shares, ties=ties, output=output, bias=bias, halves=False)


def _config(given: Mapping[str, Any]) -> TransformerConfig:
    for name, supported in _FIXED.items():
        if name in given and given[name] not in supported:
            raise UserError(f"{name} is {quoted(given[name])}, only {quoted(supported[0])} is supported")
    activation = given.get("pos_ffn_activation_fn", "relu")
    if activation not in _ACTIVATIONS:
        raise UserError(f"the activation {quoted(activation)} is not supported, only {' and '.join(_ACTIVATIONS)}")
    return TransformerConfig(
        encoder_layers=given["enc_layers"],
        decoder_layers=given["dec_layers"],
        d_model=given["hidden_size"],
        d_ff=given["transformer_ff"],
        heads=given["heads"],
        dropout=_last(given.get("dropout"), 0.3),
        attention_dropout=_last(given.get("attention_dropout"), 0.1),
        activation=activation,
        norm="pre",
        norm_epsilon=given.get("norm_eps", 1e-6),
        source_end=False,
    )


def _last(schedule: Any, default: float) -> float:
    """Return the last value of an option that may change during training."""
    values = schedule if isinstance(schedule, list) else [schedule]
    return float(values[-1]) if values and values[-1] is not None else default


def _with_new_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights (…) to fairseq's names, and add zero biases to linear layers without one."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, new in _RENAMED:
            name = pattern.sub(new, name)
        renamed[name] = tensor
    for name in list(filter(_LINEAR.fullmatch, renamed)):
        renamed.setdefault(f"{name.removesuffix('weight')}bias", torch.zeros(len(renamed[name])))
    return renamed


def _sides(vocabularies: Mapping[str, Any], files: Sequence[Path]) -> tuple[Side, Side]:
    """Return both sides, with SentencePiece models from `files`. Without them, text is segmented."""
    names = ("<blank>", "<unk>", vocabularies.get("decoder_start_token", "<s>"), "</s>")
    pieces = [vocabularies[side] for side in ("src", "tgt")]
    rests = [[piece for piece in side if piece not in {*names, *SPECIALS}] for side in pieces]
    tokenizers = tokenizers_of(joint((Vocabulary([*SPECIALS, *rests[0]]), Vocabulary([*SPECIALS, *rests[1]]))), files)
    numbers = [{piece: number for number, piece in enumerate(side)} for side in pieces]
    source, target = (
        Side(tokenizer, [ids.get(piece) for piece in (*names, *rest)], len(ids))
        for tokenizer, ids, rest in zip(tokenizers, numbers, rests, strict=True)
    )
    return source, target
