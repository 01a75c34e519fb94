"""Loads checkpoints as inference models: chooses the backend, the device and the number format."""

from collections.abc import Sequence

from nmtkit.checkpoint import Checkpoint, memory_for_weights
from nmtkit.errors import UserError
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.inference.native_transformer import NativeTransformer, unknown_options
from nmtkit.inference.protocol import InferenceModel
from nmtkit.machine import native_build
from nmtkit.machine.device import inference_device, inference_precision, is_cpu
from nmtkit.model.config import ModelConfig
from nmtkit.text.tokenizer import tokenizer_differences


def load_models(
    checkpoints: Sequence[Checkpoint], device: str = "auto", precision: str = "auto", weights: str = "auto"
) -> InferenceModel:
    """Load the model of one checkpoint, or an ensemble of several, each as `load_model` does.

    Raises UserError if the checkpoints have different languages or vocabularies.
    """
    first, *others = checkpoints
    for number, other in enumerate(others, 2):
        ours, theirs = (f"{one.source_language}-{one.target_language}" for one in (first, other))
        if ours != theirs:
            raise UserError(
                f"these checkpoints cannot form an ensemble: checkpoint {number} translates {theirs}, not {ours}"
            )
        for difference in tokenizer_differences((first.source, first.target), (other.source, other.target)):
            raise UserError(f"these checkpoints cannot form an ensemble: checkpoint {number} differs, {difference}")
    models = [load_model(checkpoint, device, precision, weights) for checkpoint in checkpoints]
    return Ensemble(models) if others else models[0]


def load_model(checkpoint: Checkpoint, device: str, precision: str, weights: str = "auto") -> InferenceModel:
    """Load the model of a checkpoint, given the values of `--device`, `--precision` and `--weights`.

    Raises UserError if the device or the number format cannot be used, and RunError if the model does not fit into
    memory.
    """
    on = inference_device(device)
    is_int8 = checkpoint.scales is not None
    number_format = inference_precision("int8" if is_int8 and precision == "auto" and is_cpu(on) else precision, on)
    config = checkpoint.model_config
    chosen = checkpoint if is_int8 and number_format == "int8" else checkpoint.without_training(weights)
    size = sum(4 * weight.size for weight in chosen.weights.values())
    with memory_for_weights(f"the model on {on}", size):
        if is_cpu(on) and NativeTransformer.supports(config, number_format):
            return NativeTransformer(
                config, chosen.weights, number_format, lambda: torch_backend(chosen.build_model()), chosen.scales
            )
        if number_format == "int8":
            check_int8(config)
        plain = torch_backend(chosen.build_model(), on, number_format)
        is_fp32 = is_cpu(on) and number_format == "fp32"
        if is_fp32 and not unknown_options(config) and native_build.is_missing():
            plain.precision = f"{number_format}, not compiled"
        return plain


def check_int8(config: ModelConfig) -> None:
    """Raise UserError if the compiled search, which alone supports int8, cannot run a model."""
    if not native_build.available("int8"):
        raise UserError("int8 needs the compiled search: use fp32, or install nmtkit again with a C++ compiler")
    if unknown := unknown_options(config):
        raise UserError(
            f"--precision int8: the compiled search does not support {' and '.join(unknown)}: use fp32 or bf16"
        )
