"""Export to CTranslate2, an inference engine in C++."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.ctranslate2_import import LAYER, LAYER_FORM
from nmtkit.conversion.folder import export_folder
from nmtkit.conversion.heads import with_full_heads
from nmtkit.conversion.known import SIZES_AND_DROPOUT, Known, check_known
from nmtkit.conversion.weights import MASK, stack_modules
from nmtkit.data.corpus import write_tokenizers
from nmtkit.errors import UserError
from nmtkit.model.positions import LearnedPositions
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import collect_weights
from nmtkit.text.vocabulary import NEVER_OUTPUT, SPECIALS

MAX_POSITIONS = 4096  # exported sinusoids, since CTranslate2 orders sines and cosines differently
_KNOWN: Known = {
    **SIZES_AND_DROPOUT,
    **dict.fromkeys(("activation", "positions", "norm_type", "norm_epsilon", "bias")),
    **{"norm": ("post", "pre"), "share_embeddings": ("all", "decoder", "none", None), "output_bias": (False, True)},
    **{"embedding_scale": None, "embedding_norm": (False, True), "decoder_recurrence": (None,)},
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
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SPECIALS[1:]
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = config.source_end
    spec.register_source_vocabulary(checkpoint.source.vocab.pieces)
    spec.register_target_vocabulary(checkpoint.target.vocab.pieces)
    _fill_transformer(spec, cast(Transformer, checkpoint.build_model()))
    spec.validate()
    spec.optimize(quantization=quantization)
    with export_folder(folder, replace) as staging:
        write_tokenizers(staging, checkpoint.languages, checkpoint.source, checkpoint.target)
        spec.save(str(staging))


def _fill_transformer(spec: Any, model: Transformer) -> None:
    config, weights = model.config, collect_weights(model)
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.target_embedding.weight)
    spec.decoder.projection.weight = _array(model.output_matrix)
    spec.decoder.projection.bias = _projection_bias(model)
    if config.embedding_scale is not None:
        spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = np.float32(config.embedding_scale)
    if config.positions != "rotary":
        for side, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.target_positions)):
            table = positions.table if isinstance(positions, LearnedPositions) else positions(0, MAX_POSITIONS)
            side.position_encodings.encodings = _array(table)
    for ours, (theirs,) in stack_modules(config, LAYER, LAYER_FORM).items():
        part, weight, bias = _at(spec, theirs), weights[f"{ours}.weight"], weights.get(f"{ours}.bias")
        if ours.endswith("norm"):
            part.gamma = _array(weight)
            if config.norm_type == "layer":
                part.beta = _array(weight * 0 if bias is None else bias)
            continue
        gated = config.activation == "swiglu" and ours.endswith("inner")
        parts = [part, _at(spec, f"{theirs}_noact")] if gated else [part]
        for number, each in enumerate(parts):
            each.weight = _array(weight.chunk(len(parts))[number])
            if bias is not None:
                each.bias = _array(bias.chunk(len(parts))[number])


def _at(spec: Any, path: str) -> Any:
    """Return the part of a specification at a path such as decoder.layer_0.ffn.linear_1."""
    for name in path.split("."):
        stem, _, number = name.rpartition("_")
        spec = getattr(spec, name) if hasattr(spec, name) else getattr(spec, stem)[int(number)]
    return spec


def _projection_bias(model: Transformer) -> NDArray[np.float32]:
    """Return the bias of the logits (W,), which also excludes the ids of `NEVER_OUTPUT` from the softmax."""
    matrix, bias = model.output_matrix, model.output_bias
    masked: NDArray[np.float32] = _array(matrix.new_zeros(len(matrix)) if bias is None else bias).copy()
    masked[list(NEVER_OUTPUT)] = MASK
    return masked


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()
