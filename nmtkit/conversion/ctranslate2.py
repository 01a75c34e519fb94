"""Export to CTranslate2, an inference engine in C++."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.folder import add_tokenizers, export_folder
from nmtkit.conversion.heads import with_full_heads
from nmtkit.conversion.known import SIZES_AND_DROPOUT, Known, check_known
from nmtkit.conversion.weights import MASK
from nmtkit.errors import UserError
from nmtkit.model.layers import DecoderLayer, EncoderLayer
from nmtkit.model.positions import LearnedPositions
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import NEVER_OUTPUT, SPECIALS

MAX_POSITIONS = 4096  # exported sinusoids, since CTranslate2 orders sines and cosines differently
_KNOWN: Known = {
    **SIZES_AND_DROPOUT,
    **dict.fromkeys(("activation", "positions", "norm_type", "bias")),
    **{"norm": ("post", "pre"), "share_embeddings": ("all", "decoder", "none", None), "output_bias": (False, True)},
    **{"embedding_scale": None, "embedding_norm": (False, True)},
    **{"source_end": (False, True), "attention_window": (None,), "qk_norm": (False,)},
}


def to_ctranslate2(
    checkpoint: Checkpoint,
    folder: Path,
    weights: str = "auto",
    quantization: str | None = None,
    *,
    replace: bool = False,
) -> None:
    """Write a checkpoint as a CTranslate2 model, atomically.

    The folder also contains the tokenizers, because CTranslate2 translates pieces, not text. `weights` is as in
    `WeightsConfig`; `quantization` is one of `QUANTIZATIONS`, or None for float32. Raises UserError if the package
    ctranslate2 is missing, if the folder exists without `replace`, or if CTranslate2 does not support the model.
    """
    try:
        from ctranslate2.specs import TransformerSpec
        from ctranslate2.specs.common_spec import Activation
        from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
    except ImportError as error:
        raise UserError("this format needs the package ctranslate2: pip install ctranslate2") from error
    config = check_known(checkpoint.model_config, _KNOWN, "CTranslate2")
    checkpoint = with_full_heads(checkpoint.without_training(weights), config)
    options = {
        "pre_norm": config.norm == "pre",
        "layernorm_embedding": config.embedding_norm,
        "activation": getattr(Activation, config.activation.upper().replace("SWIGLU", "SWISH")),
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm_type == "rms",
        "rotary_dim": config.key_size if config.positions == "rotary" else None,
        "rotary_interleave": False,
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, config.heads, **options),
        TransformerDecoderSpec(config.decoder_layers, config.heads, **options),
    )
    spec.config.layer_norm_epsilon = 1e-5  # of RMSNorm, the default is different
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SPECIALS[1:]
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = config.source_end
    spec.register_source_vocabulary(checkpoint.source.vocab.pieces)
    spec.register_target_vocabulary(checkpoint.target.vocab.pieces)
    _fill_transformer(spec, cast(Transformer, checkpoint.build_model()))
    spec.validate()
    spec.optimize(quantization=quantization)
    with export_folder(folder, replace) as staging:
        add_tokenizers(staging, checkpoint)
        spec.save(str(staging))


def _fill_transformer(spec: Any, model: Transformer) -> None:
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.target_embedding.weight)
    spec.decoder.projection.weight = _array(model.output_matrix)
    spec.decoder.projection.bias = _projection_bias(model)
    if model.config.embedding_scale is not None:
        spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = np.float32(model.config.embedding_scale)
    if model.config.embedding_norm:
        _fill_norm(spec.encoder.layernorm_embedding, model.source_norm)
        _fill_norm(spec.decoder.layernorm_embedding, model.target_norm)
    if model.config.positions != "rotary":
        for side, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.target_positions)):
            side.position_encodings.encodings = _array(_position_table(positions))
    if model.config.norm == "pre":
        _fill_norm(spec.encoder.layer_norm, model.encoder_norm)
        _fill_norm(spec.decoder.layer_norm, model.decoder_norm)
    for layer_spec, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _fill_layer(layer_spec, cast(EncoderLayer, layer))
    for layer_spec, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _fill_layer(layer_spec, cast(DecoderLayer, layer))
        _fill_cross_attention(layer_spec.attention, cast(DecoderLayer, layer))


def _position_table(positions: nn.Module) -> Tensor:
    """Return the encodings (positions, D) of all learned positions, or of the first `MAX_POSITIONS` sinusoids."""
    return positions.table if isinstance(positions, LearnedPositions) else cast(Tensor, positions(0, MAX_POSITIONS))


def _projection_bias(model: Transformer) -> NDArray[np.float32]:
    """Return the bias of the logits (W,), which also excludes the ids of `NEVER_OUTPUT` from the softmax."""
    matrix, bias = model.output_matrix, model.output_bias
    masked: NDArray[np.float32] = _array(matrix.new_zeros(len(matrix)) if bias is None else bias).copy()
    masked[list(NEVER_OUTPUT)] = MASK
    return masked


def _fill_layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _fill_linear(spec.self_attention.linear[0], layer.self_attention.qkv)
    _fill_linear(spec.self_attention.linear[1], layer.self_attention.out)
    _fill_norm(spec.self_attention.layer_norm, layer.around_self_attention.norm)
    gated = [spec.ffn.linear_0_noact] if len(layer.feed_forward.inner.widths) == 2 else []
    _fill_linear(spec.ffn.linear_0, layer.feed_forward.inner, *gated)
    _fill_linear(spec.ffn.linear_1, layer.feed_forward.outer)
    _fill_norm(spec.ffn.layer_norm, layer.around_feed_forward.norm)


def _fill_cross_attention(spec: Any, layer: DecoderLayer) -> None:
    _fill_linear(spec.linear[0], layer.cross_attention.q)
    _fill_linear(spec.linear[1], layer.cross_attention.kv)
    _fill_linear(spec.linear[2], layer.cross_attention.out)
    _fill_norm(spec.layer_norm, layer.around_cross_attention.norm)


def _fill_linear(spec: Any, linear: nn.Linear, *more: Any) -> None:
    """Divide the rows of a linear layer equally among its specifications."""
    rows = linear.out_features // (1 + len(more))
    for number, each in enumerate((spec, *more)):
        part = slice(number * rows, (number + 1) * rows)
        each.weight = _array(linear.weight[part])
        if linear.bias is not None:
            each.bias = _array(linear.bias[part])


def _fill_norm(spec: Any, norm: nn.Module) -> None:
    gain = cast(Tensor, norm.weight)
    spec.gamma = _array(gain)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(gain * 0 if norm.bias is None else norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()
