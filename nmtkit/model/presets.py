"""Presets for `--arch`: named sets of options.

A preset sets options of nmt-train by name; options given by the user override it. All others have the defaults of the
paper's base model. `table3_…` are rows of the paper's Table 3, named after the letter of the row and its change.
"""

from dataclasses import fields
from typing import Any, NamedTuple

from nmtkit.model.config import ModelConfig, TransformerConfig
from nmtkit.model.convolutional_config import ConvolutionalConfig
from nmtkit.model.recurrent_config import RecurrentConfig


class Preset(NamedTuple):
    """The options that a value of `--arch` stands for."""

    config: type[ModelConfig]
    options: dict[str, Any]  # of the model and of training

    def model_config(self, **given: Any) -> ModelConfig:
        """Create the options of the model from `given` values, the preset and defaults, in this order of precedence."""
        names = {field.name for field in fields(self.config)}
        return self.config(**{name: value for name, value in (self.options | given).items() if name in names})


# What later work changed, with a deep encoder and a shallow decoder, at the FLOPs of the paper's model of that size.
_MODERN = {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary", "bias": False}
# Sizes of the Firefox translation models, in a form that Marian can read.
_STUDENT = {"norm": "post", "positions": "marian", "decoder_recurrence": "ssru", "decoder_layers": 2}
_TRANSFORMER: dict[str, dict[str, Any]] = {
    "transformer": {},  # name in checkpoints and options.json, which contain every option
    "transformer_base": {},
    "transformer_big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3, "max_updates": 300_000},
    "transformer_small": {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "transformer_tiny": {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "heads": 4},
    "transformer_modern": _MODERN | {"encoder_layers": 12, "decoder_layers": 2, "d_ff": 1280},
    "transformer_modern_small": _MODERN
    | {"encoder_layers": 6, "decoder_layers": 1, "d_model": 256, "d_ff": 640, "heads": 4},
    "transformer_modern_tiny": _MODERN
    | {"encoder_layers": 8, "decoder_layers": 1, "d_model": 128, "d_ff": 176, "heads": 4},
    "student_tiny": _STUDENT | {"d_model": 256, "d_ff": 1536},
    "student_base_memory": _STUDENT | {"decoder_layers": 4, "d_model": 384, "d_ff": 1536},
    "student_base": _STUDENT,
    "table3_a_h1": {"heads": 1, "d_k": 512, "d_v": 512},
    "table3_a_h4": {"heads": 4, "d_k": 128, "d_v": 128},
    "table3_a_h16": {"heads": 16, "d_k": 32, "d_v": 32},
    "table3_a_h32": {"heads": 32, "d_k": 16, "d_v": 16},
    "table3_b_dk16": {"d_k": 16},
    "table3_b_dk32": {"d_k": 32},
    "table3_c_n2": {"encoder_layers": 2, "decoder_layers": 2},
    "table3_c_n4": {"encoder_layers": 4, "decoder_layers": 4},
    "table3_c_n8": {"encoder_layers": 8, "decoder_layers": 8},
    "table3_c_d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "table3_c_d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "table3_c_ff1024": {"d_ff": 1024},
    "table3_c_ff4096": {"d_ff": 4096},
    "table3_d_dropout0": {"dropout": 0.0},
    "table3_d_dropout2": {"dropout": 0.2},
    "table3_d_smoothing0": {"label_smoothing": 0.0},
    "table3_d_smoothing2": {"label_smoothing": 0.2},
    "table3_e_learned": {"positions": "learned"},
}

_RECURRENT: dict[str, dict[str, Any]] = {  # optimizer as in NVIDIA's GNMT v2, whose learning rate falls in steps
    "gnmt": {"lr_schedule": "cosine", "lr": 2e-3, "warmup_updates": 200, "clip_norm": 5.0},
    "lstm_small": {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "separate_output": False}
    | {"lr_schedule": "cosine", "lr": 2e-3, "warmup_updates": 200, "clip_norm": 5.0},
}

_CONVOLUTIONAL: dict[str, dict[str, Any]] = {
    "convs2s": {"clip_norm": 0.1},
    "conv_small": {"encoder_convolutions": "5x256", "decoder_convolutions": "5x256", "d_model": 256}
    | {"d_bottleneck": 256, "separate_output": False, "clip_norm": 0.1},
}

PRESETS = {
    name: Preset(config, options)
    for config, presets in (
        (TransformerConfig, _TRANSFORMER),
        (RecurrentConfig, _RECURRENT),
        (ConvolutionalConfig, _CONVOLUTIONAL),
    )
    for name, options in presets.items()
}
