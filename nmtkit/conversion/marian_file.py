"""The model files of Marian, `.npz` and `.bin`, and the settings in them.

Marian computes x·W, so the matrices of layers are transposed, and their vectors are rows. The embeddings and the output
matrix have a row for each piece, as in nmtkit. In int8, each matrix has one scale, 127 / max |W|, and is stored
transposed, except for embeddings.
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
from nmtkit.storage.files import begins_with
from nmtkit.wording import quoted

DECODER = "decoder.yml"  #: file with the settings of the search
NORM_EPSILON = 1e-6  #: of all models
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
_UNTIED = "decoder_ff_logit_out_W"  # the output matrix (D, W) of early models, and in int8
# The format .bin: version and count; then for each item, the bytes of its name, type, rank and bytes of its content.
_START, _ITEM, _VERSION, _ALIGNMENT = struct.Struct("<QQ"), struct.Struct("<4Q"), 1, 256
_BINARY = _VERSION.to_bytes(8, "little")
_DTYPES: dict[int, np.dtype[Any]] = {0x404: np.dtype("<f4"), 0x402: np.dtype("<f2"), 0x101: np.dtype("<i1")}
_INT8, _MARIAN_INT8 = 0x4101, 0x10001  # intgemm8 of Bergamot and of Marian, which do not depend on the machine
_PRODUCT = re.compile(r".*(_W.?|Wemb)")  # names of matrices in int8
_INPUT = "_QuantMultA"  # suffix of the name of a product for the scale of its input
_Item = tuple[int, tuple[int, ...], bytes]  # type, shape and content


def fixed(has_ssru: bool) -> Mapping[str, tuple[str, ...]]:
    """Return the supported values of settings that are not options, the default first."""
    return {**_FIXED, **(_SSRU if has_ssru else {})}


def find_model(path: Path) -> Path | None:
    """Return a path if it is a model file, or the one in a folder; None without one. Raises UserError for several."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.is_file() and (file.suffix == ".npz" or begins_with(file, _BINARY))]
    if len(found) > 1:
        raise UserError(f"the folder contains several models of Marian: give one, such as {found[0]}")
    return found[0] if found else None


def read_marian(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Sequence[str]]]:
    """Read the weights (…) of a model by the names of transformers, and its settings.

    Unknown weights keep their names, and int8 becomes float32. Call it inside `as_user_errors`.
    """
    items = _read_binary(path.read_bytes()) if begins_with(path, _BINARY) else dict(np.load(path))
    if _SETTINGS not in items:
        raise UserError(f"it has no {_SETTINGS}: not a Marian model")
    settings = parse_settings(items.pop(_SETTINGS).tobytes().rstrip(b"\0").decode())
    depths = (int(settings[name][0]) for name in ("enc-depth", "dec-depth"))
    names = {theirs: name for name, theirs in _names(*depths).items()}
    names[_UNTIED] = "lm_head.weight"
    weights = {name: torch.from_numpy(item) for name, item in items.items() if not name.endswith(_INPUT)}
    return {names.get(name, name): _turned(name, weight) for name, weight in weights.items()}, settings


def write_marian(
    path: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], scales: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights (…), named as in transformers, and settings, in the format of the suffix `.npz` or `.bin`.

    With `scales`, tensors filled with the scale of each product's input, matrices are quantized to int8.
    """
    names = _names(settings["enc-depth"], settings["dec-depth"])
    if scales is not None:
        names["lm_head.weight"] = _UNTIED
    turned = {names[name]: _turned(names[name], tensor).contiguous().numpy() for name, tensor in tensors.items()}
    content = to_yaml(settings).encode() + b"\0"
    content += bytes(-len(content) % _ALIGNMENT)
    special = {_SETTINGS: np.frombuffer(content, np.int8)}
    if path.suffix == ".npz":
        np.savez(path, **turned, **special)  # type: ignore[arg-type]
        return
    items = {name: _item(array) for name, array in turned.items()}
    for name, scale in (scales or {}).items():
        if _PRODUCT.fullmatch(product := names[name]):
            items[product] = _quantized(product, turned[product])
            items[product + _INPUT] = _item(scale.flatten()[:1].numpy())
            if "Wemb" in product:  # the name of an output with a shortlist
                items["none" + _INPUT] = items[product + _INPUT]
    path.write_bytes(_binary(dict(sorted(items.items())) | {_SETTINGS: _item(special[_SETTINGS])}))


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
        if kind in (_INT8, _MARIAN_INT8):
            items[name] = _dequantized(name, shape, content[position : position + size])
        elif kind not in _DTYPES:
            raise UserError(f"the weight {quoted(name)} has type {kind:#x}, which is not portable: import the original")
        else:
            items[name] = np.frombuffer(content, _DTYPES[kind], shape.prod(), position).reshape(shape).copy()
        position += size
    return items


def _item(array: NDArray[Any]) -> _Item:
    return next(kind for kind, dtype in _DTYPES.items() if dtype == array.dtype), array.shape, array.tobytes()


def _quantized(name: str, matrix: NDArray[np.float32]) -> _Item:
    scale = np.float32(127) / np.abs(matrix).max()
    integers = np.clip(np.rint(matrix * scale), -127, 127).astype(np.int8)
    return _INT8, matrix.shape, (integers if "Wemb" in name else integers.T).tobytes() + scale.tobytes()


def _dequantized(name: str, shape: NDArray[np.int32], content: bytes) -> NDArray[np.float32]:
    integers, scale = np.frombuffer(content, np.int8, shape.prod()), np.frombuffer(content, "<f4", 1, shape.prod())
    turned = integers.reshape(shape) if "Wemb" in name else integers.reshape(shape[::-1]).T
    return np.ascontiguousarray(turned / scale)


def _binary(items: Mapping[str, _Item]) -> bytes:
    names = [name.encode() + b"\0" for name in items]
    contents = [content + bytes(-len(content) % _ALIGNMENT) for _, _, content in items.values()]
    header = _START.pack(_VERSION, len(items))
    for name, (kind, shape, _), content in zip(names, items.values(), contents, strict=True):
        header += _ITEM.pack(len(name), kind, len(shape), len(content))
    header += b"".join(names) + b"".join(np.array(shape, "<i4").tobytes() for _, shape, _ in items.values())
    gap = _ALIGNMENT - (len(header) + 8) % _ALIGNMENT
    return header + gap.to_bytes(8, "little") + bytes(gap) + b"".join(contents)
