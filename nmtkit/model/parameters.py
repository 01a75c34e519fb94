"""The parameters of a model by name, without torch: shapes, checks of a checkpoint's arrays, and merging of LoRA."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.errors import UserError
from nmtkit.model.config import TransformerConfig

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, NDArray[np.float32]]

_A, _B, _MATRIX = ".lora_a.", ".lora_b.", ".weight"  # parts of parameter names


def transformer_shapes(config: TransformerConfig, source_size: int, target_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter of a `Transformer`, in order. Raises UserError if the sizes do not fit."""
    config = config.for_vocabularies(joined=source_size == target_size)
    return dict(_transformer_shapes(config, source_size, target_size))


def _transformer_shapes(
    config: TransformerConfig, source_size: int, target_size: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = config.d_model
    keys, values = config.heads * config.key_size, config.heads * config.value_size

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (outputs, inputs)
        if config.bias:
            yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (D,)
        if config.bias and config.norm_type == "layer":
            yield f"{name}.bias", (D,)

    def attention(name: str, *projections: tuple[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
        for projection, width in projections:
            yield from linear(f"{name}.{projection}", width, D)
        yield from linear(f"{name}.out", D, values)
        if config.qk_norm:
            yield f"{name}.q_norm.weight", (config.key_size,)
            yield f"{name}.k_norm.weight", (config.key_size,)

    if config.output_bias:
        yield "projection_bias", (target_size,)
    yield "target_embedding.weight", (target_size, D)
    if config.share_embeddings != "all":
        yield "source_embedding.weight", (source_size, D)
    if config.share_embeddings == "none":
        yield "projection.weight", (target_size, D)
    if config.positions == "learned":
        yield "source_positions.table", (config.max_positions, D)
        yield "target_positions.table", (config.max_positions, D)
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(layers):
            layer, sublayers = f"{stack}.{number}", ["self_attention", "feed_forward"]
            if stack == "decoder" and config.decoder_recurrence:
                yield f"{layer}.self_attention.value.weight", (D, D)
                yield from linear(f"{layer}.self_attention.gate", D, D)
            else:
                yield from attention(f"{layer}.self_attention", ("qkv", 2 * keys + values))
            if stack == "decoder":
                sublayers.insert(1, "cross_attention")
                yield from attention(f"{layer}.cross_attention", ("q", keys), ("kv", keys + values))
            yield from linear(f"{layer}.feed_forward.inner", sum(config.inner_widths), D)
            yield from linear(f"{layer}.feed_forward.outer", D, config.d_ff)
            for sublayer in sublayers:
                yield from norm(f"{layer}.around_{sublayer}.norm")
    names = ["encoder_norm", "decoder_norm"] if config.norm == "pre" else []
    names += ["source_norm", "target_norm"] if config.embedding_norm else []
    for name in names:
        yield from norm(name)


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


def _unlike(weight: Any, shape: tuple[int, ...], dtype: type = np.float32) -> str | None:
    """Explain why a value cannot be the weights of a parameter of this shape; None if it can."""
    if not isinstance(weight, np.ndarray):
        return "is not an array"
    if weight.dtype != dtype:
        return f"is {weight.dtype} where {np.dtype(dtype)} is expected"
    if weight.shape != shape:
        return f"has {list(weight.shape)} where {list(shape)} is expected"
    return None


def merged(weights: Mapping[str, NDArray[np.float32]], scale: float) -> Weights:
    """Merge each addition into its matrix W + s·B·A (outputs, inputs) in float32. Other weights are unchanged."""
    adapted = dict.fromkeys(filter(None, map(_matrix_of, weights)))
    plain = {name: weight for name, weight in weights.items() if _matrix_of(name) is None}
    additions = {name: np.concatenate(list(_products(name, weights))) for name in adapted}
    return plain | {name: weights[name] + np.float32(scale) * addition for name, addition in additions.items()}


def _products(matrix: str, weights: Mapping[str, NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield B·A (outputs, inputs) of each projection of a matrix, in the order of its rows."""
    layer = matrix.removesuffix(_MATRIX)
    number = 0
    while (a := weights.get(f"{layer}{_A}{number}")) is not None:
        yield weights[f"{layer}{_B}{number}"] @ a
        number += 1


def _matrix_of(name: str) -> str | None:
    """Return the name of the matrix that an addition's parameter belongs to; None for any other parameter."""
    for part in (_A, _B):
        layer, found, _ = name.rpartition(part)
        if found:
            return layer + _MATRIX
    return None
