"""The parameters of a model by name, without torch: shapes, checks of a checkpoint's arrays, and merging of LoRA."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, NDArray[np.float32]]

_A, _B = ".lora_a.", ".lora_b."  # parts of parameter names


def transformer_shapes(config: TransformerConfig, source_size: int, target_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of a `Transformer`, in order. Raises UserError if the sizes do not fit."""
    config = config.for_vocabularies(joined=source_size == target_size)
    D = config.d_model
    keys, values = config.heads * config.key_size, config.heads * config.value_size
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if config.bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = (D,)
        if config.bias and config.norm_type == "layer":
            shapes[f"{name}.bias"] = (D,)

    def attention(name: str, **projections: int) -> None:
        for projection, width in projections.items():
            linear(f"{name}.{projection}", width, D)
        linear(f"{name}.out", D, values)
        if config.qk_norm:
            shapes[f"{name}.q_norm.weight"] = shapes[f"{name}.k_norm.weight"] = (config.key_size,)

    if config.output_bias:
        shapes["projection_bias"] = (target_size,)
    shapes["target_embedding.weight"] = (target_size, D)
    if config.share_embeddings != "all":
        shapes["source_embedding.weight"] = (source_size, D)
    if config.share_embeddings == "none":
        shapes["projection.weight"] = (target_size, D)
    if config.positions == "learned":
        shapes["source_positions.table"] = shapes["target_positions.table"] = (config.max_positions, D)
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(layers):
            layer, sublayers = f"{stack}.{number}", ["self_attention", "feed_forward"]
            if stack == "decoder" and config.decoder_recurrence:
                shapes[f"{layer}.self_attention.value.weight"] = (D, D)
                linear(f"{layer}.self_attention.gate", D, D)
            else:
                attention(f"{layer}.self_attention", qkv=2 * keys + values)
            if stack == "decoder":
                sublayers.insert(1, "cross_attention")
                attention(f"{layer}.cross_attention", q=keys, kv=keys + values)
            linear(f"{layer}.feed_forward.inner", sum(config.inner_widths), D)
            linear(f"{layer}.feed_forward.outer", D, config.d_ff)
            for sublayer in sublayers:
                norm(f"{layer}.around_{sublayer}.norm")
    names = ["encoder_norm", "decoder_norm"] if config.norm == "pre" else []
    names += ["source_norm", "target_norm"] if config.embedding_norm else []
    for name in names:
        norm(name)
    return shapes


def means(weight: NDArray[np.float32], rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the mean (n, …) of each of n groups of `rows` of a weight (W, …)."""
    result = weight[[group[0] for group in rows]]
    for number, group in enumerate(rows):
        if len(group) > 1:
            result[number] = weight[list(group)].mean(axis=0, dtype=np.float64)
    return result


def is_factor(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is a matrix that can be stored in int8, by its name and shape."""
    return len(shape) == 2 and name.endswith(".weight")


def check_weights(weights: Mapping[str, Any], shapes: Shapes, scales: Mapping[str, Any] | None = None) -> None:
    """Raise UserError with the first mismatch unless `weights` (…) are float32 arrays of these names and shapes, or
    int8 with `scales`, one for each row."""
    for name in sorted(shapes.keys() ^ weights.keys()):
        raise UserError(f"the weights do not fit the model: {name} is {'missing' if name in shapes else 'unknown'}")
    scales = scales or {}
    for name in scales:
        if name not in shapes or not is_factor(name, shapes[name]):
            raise UserError(f"the weights do not fit the model: {name} cannot be int8")
    for name, shape in shapes.items():
        if name in scales:
            difference = _unlike(weights[name], shape, np.int8) or _unlike(scales[name], shape[:1])
        else:
            difference = _unlike(weights[name], shape)
        if difference:
            raise UserError(f"the weights do not fit the model: {name} {difference}")


def check_finite(weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Raise UserError with the name of the first parameter (…) that contains NaN or infinity."""
    for name, weight in weights.items():
        if not (np.isfinite(weight.min()) and np.isfinite(weight.max())):
            raise UserError(f"{name} contains NaN or infinity: use a different checkpoint")


def _unlike(weight: NDArray[Any], shape: tuple[int, ...], dtype: type = np.float32) -> str | None:
    """Explain why an array cannot be the weights of a parameter of this shape; None if it can."""
    if weight.dtype != dtype:
        return f"is {weight.dtype} where {np.dtype(dtype)} is expected"
    if weight.shape != shape:
        return f"has {list(weight.shape)} where {list(shape)} is expected"
    return None


def merged(weights: Mapping[str, NDArray[np.float32]], scale: float) -> Weights:
    """Merge each addition into its matrix W + s·B·A (outputs, inputs) in float32. Other weights are unchanged."""
    result = {name: weight for name, weight in weights.items() if _A not in name and _B not in name}
    for layer in dict.fromkeys(name.partition(_A)[0] for name in weights if _A in name):
        count = sum(name.startswith(f"{layer}{_A}") for name in weights)  # one for each projection, in order of rows
        additions = [weights[f"{layer}{_B}{number}"] @ weights[f"{layer}{_A}{number}"] for number in range(count)]
        result[f"{layer}.weight"] = result[f"{layer}.weight"] + np.float32(scale) * np.concatenate(additions)
    return result
