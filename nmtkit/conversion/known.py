"""Checks which options of a Transformer a foreign format supports.

An exporter lists what it supports, so that it rejects options and values that are added to the model later.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields

from nmtkit.config import flag
from nmtkit.errors import UserError
from nmtkit.model.config import ModelConfig, TransformerConfig

Known = Mapping[str, Collection[object] | None]  # option -> supported values; None for all

SIZES_AND_DROPOUT: Known = dict.fromkeys(
    (
        *("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "max_positions"),
        *("dropout", "attention_dropout", "activation_dropout"),
    )
)
MARIAN: Known = {  #: Marian models of transformers
    **SIZES_AND_DROPOUT,
    **{"norm_type": ("layer",), "norm_epsilon": (1e-5,), "qk_norm": (False,), "bias": (True,)},
    **{"activation": ("relu", "gelu", "swish"), "positions": ("sinusoidal",), "norm": ("post",)},
    **{"share_embeddings": ("all", "decoder", "none", None), "output_bias": (False, True)},
    **{"embedding_scale": (None, 1.0), "embedding_norm": (False,), "source_end": (True,), "attention_window": (None,)},
    "decoder_recurrence": (None,),
}


def check_known(config: ModelConfig, known: Known, target: str) -> TransformerConfig:
    """Return the options of a Transformer. Raises UserError with the first option that `target` does not support."""
    if not isinstance(config, TransformerConfig) or config.arch != TransformerConfig.arch:
        raise UserError(f"{target} supports Transformers, not the architecture {config.arch}: use --to safetensors")
    for field in fields(config):
        value, values = getattr(config, field.name), known.get(field.name, ())
        if values is not None and value not in values:
            raise UserError(f"{target} does not support {flag(field.name)} {value}: use --to safetensors")
    return config
