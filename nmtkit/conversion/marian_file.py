"""The model files of Marian, `.npz` and `.bin`, and the settings in them.

Marian computes x·W, so the matrices of layers are transposed, and their vectors are rows. The embeddings and the output
matrix have a row for each piece, as in nmtkit.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.errors import UserError
from nmtkit.wording import quoted

DECODER = "decoder.yml"  #: file with the settings of the search
SPM, YAML = ".spm", ".yml"  #: suffixes of vocabularies
OPTIONS = {  #: options of `TransformerConfig`, and their names in Marian
    **{"encoder_layers": "enc-depth", "decoder_layers": "dec-depth", "d_model": "dim-emb"},
    **{"d_ff": "transformer-dim-ffn", "heads": "transformer-heads", "activation": "transformer-ffn-activation"},
}
_FIXED: Mapping[str, tuple[str, ...]] = {  # the supported values of other settings, the default first
    **{"type": ("transformer",), "transformer-preprocess": ("", "d"), "transformer-postprocess": ("dan", "an")},
    **{"transformer-postprocess-emb": ("d", ""), "transformer-postprocess-top": ("", "d")},
    **{"transformer-decoder-autoreg": ("self-attention",), "transformer-attention-mask": ("default",)},
    **{"transformer-ffn-depth": ("2",), "transformer-decoder-ffn-depth": ("0", "2")},
    **{f"transformer-{name}": ("false",) for name in ("no-projection", "no-bias", "no-affine", "pool", "alibi-shift")},
    **dict.fromkeys(("transformer-disable-position-embeddings", "right-left", "ulr"), ("false",)),
    **{"transformer-decoder-dim-ffn": ("0",), "transformer-ffn-activation": ("relu", "swish", "gelu")},
    **{"input-types": ("", "sequence sequence"), "transformer-tied-layers": ("",), "lemma-dim-emb": ("0",)},
}
_SSRU: Mapping[str, tuple[str, ...]] = {  # the same, of decoders with SSRUs
    **{"transformer-decoder-autoreg": ("rnn",), "dec-cell": ("ssru",)},
    **dict.fromkeys(("layer-normalization", "transformer-rnn-projection"), ("false",)),
}
_SETTINGS = "special:model.yml"  # name of the settings among the weights
MATRICES = {  #: name in transformers -> in Marian
    **{"shared.weight": "Wemb", "lm_head.weight": "decoder_ff_logit_out_Wt"},
    **{f"{stack}.embed_tokens.weight": f"{stack}_Wemb" for stack in ("encoder", "decoder")},
    "final_logits_bias": "decoder_ff_logit_out_b",
}
_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
_LAYER = {  # module in transformers -> weight and bias in Marian
    **{f"self_attn.{theirs}": (f"self_W{name}", f"self_b{name}") for theirs, name in _ATTENTION.items()},
    **{f"encoder_attn.{theirs}": (f"context_W{name}", f"context_b{name}") for theirs, name in _ATTENTION.items()},
    **{f"fc{number}": (f"ffn_W{number}", f"ffn_b{number}") for number in (1, 2)},
    "rnn.value": ("rnn_W", "rnn_b"),
    "rnn.gate": ("rnn_Wf", "rnn_bf"),
    "rnn_layer_norm": ("rnn_ffn_ln_scale", "rnn_ffn_ln_bias"),
    "self_attn_layer_norm": ("self_Wo_ln_scale", "self_Wo_ln_bias"),
    "encoder_attn_layer_norm": ("context_Wo_ln_scale", "context_Wo_ln_bias"),
    "final_layer_norm": ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias"),
}
# The format .bin: version and count; then for each item, the bytes of its name, type, rank and bytes of its content.
_START, _ITEM, _VERSION, _ALIGNMENT = struct.Struct("<QQ"), struct.Struct("<4Q"), 1, 256
_DTYPES: dict[int, np.dtype[Any]] = {0x404: np.dtype("<f4"), 0x402: np.dtype("<f2"), 0x101: np.dtype("<i1")}


def fixed(has_ssru: bool) -> Mapping[str, tuple[str, ...]]:
    """Return the supported values of settings that are not options, the default first."""
    return {**_FIXED, **(_SSRU if has_ssru else {})}


def read_marian(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Sequence[str]]]:
    """Read the weights (…) of a model by the names of transformers, and its settings.

    Unknown weights keep their names. Call it inside `as_user_errors`.
    """
    items = _read_binary(path.read_bytes()) if path.suffix == ".bin" else dict(np.load(path))
    if _SETTINGS not in items:
        raise UserError(f"it has no {_SETTINGS}: not a Marian model")
    settings = parse_settings(items.pop(_SETTINGS).tobytes().rstrip(b"\0").decode())
    depths = (int(settings[name][0]) for name in ("enc-depth", "dec-depth"))
    names = {theirs: name for name, theirs in _names(*depths).items()}
    names["decoder_ff_logit_out_W"] = "lm_head.weight"  # (D, W), in early models
    return {names.get(name, name): _turned(name, torch.from_numpy(item)) for name, item in items.items()}, settings


def write_marian(path: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    """Write weights (…), named as in transformers, and settings, in the format of the suffix `.npz` or `.bin`."""
    names = _names(settings["enc-depth"], settings["dec-depth"])
    turned = {names[name]: _turned(names[name], tensor).contiguous().numpy() for name, tensor in tensors.items()}
    content = to_yaml(settings).encode() + b"\0"
    content += bytes(-len(content) % _ALIGNMENT)
    items = dict(sorted(turned.items())) | {_SETTINGS: np.frombuffer(content, np.int8)}
    if path.suffix == ".bin":
        path.write_bytes(_binary(items))
    else:
        np.savez(path, **items)  # type: ignore[arg-type]


def parse_settings(text: str) -> Mapping[str, Sequence[str]]:
    """Parse the YAML that Marian writes. Returns lists of values by name; a single value is a list of one."""
    settings: dict[str, list[str]] = {}
    values: list[str] = []
    for name, value in re.findall(r"^(?:([\w-]+):|\s*- ) *(.*)$", text, re.MULTILINE):
        if name:
            values = settings[name] = []
        values += filter(None, (each.strip(" \"'") for each in value.strip("[]").split(", ")))
    return settings


def to_yaml(settings: Mapping[str, Any]) -> str:
    """Serialize settings, each a value or a list, as YAML. Values are in JSON, which is valid YAML."""
    shown = (value if isinstance(value, str) and value else json.dumps(value) for value in settings.values())
    return "".join(f"{name}: {value}\n" for name, value in zip(settings, shown, strict=True))


def _names(encoder_layers: int, decoder_layers: int) -> dict[str, str]:
    """Return Marian's name for each name in transformers."""
    names = dict(MATRICES)
    for stack, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for number in range(layers):
            for module, (weight, bias) in _LAYER.items():
                names[f"{stack}.layers.{number}.{module}.weight"] = f"{stack}_l{number + 1}_{weight}"
                names[f"{stack}.layers.{number}.{module}.bias"] = f"{stack}_l{number + 1}_{bias}"
    return names


def _turned(name: str, tensor: Tensor) -> Tensor:
    """Transpose a matrix of a layer; convert a vector (n,) to a row (1, n), and back."""
    if name in MATRICES.values():
        return tensor
    if name.rpartition("_")[2].startswith("W"):
        return tensor.t()
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten()


def _read_binary(content: bytes) -> dict[str, NDArray[Any]]:
    _, count = _START.unpack_from(content)
    end = _START.size + count * _ITEM.size
    lengths, kinds, ranks, sizes = zip(*_ITEM.iter_unpack(content[_START.size : end]), strict=True)
    names = content[end : end + sum(lengths)].decode().split("\0")[:-1]
    dims = np.frombuffer(content, "<i4", sum(ranks), end + sum(lengths))
    position = end + sum(lengths) + dims.nbytes
    position += 8 + int.from_bytes(content[position : position + 8], "little")
    items: dict[str, NDArray[Any]] = {}
    for name, kind, shape, size in zip(names, kinds, np.split(dims, np.cumsum(ranks)[:-1]), sizes, strict=True):
        if kind not in _DTYPES:
            raise UserError(f"the weight {quoted(name)} has the type {kind:#x}: only float32 and float16 are supported")
        items[name] = np.frombuffer(content, _DTYPES[kind], shape.prod(), position).reshape(shape).copy()
        position += size
    return items


def _binary(items: Mapping[str, NDArray[Any]]) -> bytes:
    names = [name.encode() + b"\0" for name in items]
    contents = [array.tobytes() + bytes(-array.nbytes % _ALIGNMENT) for array in items.values()]
    kinds = {dtype: kind for kind, dtype in _DTYPES.items()}
    header = _START.pack(_VERSION, len(items))
    for name, array, content in zip(names, items.values(), contents, strict=True):
        header += _ITEM.pack(len(name), kinds[array.dtype], array.ndim, len(content))
    header += b"".join(names) + b"".join(np.array(array.shape, "<i4").tobytes() for array in items.values())
    gap = _ALIGNMENT - (len(header) + 8) % _ALIGNMENT
    return header + gap.to_bytes(8, "little") + bytes(gap) + b"".join(contents)
