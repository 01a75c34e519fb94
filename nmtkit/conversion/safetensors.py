"""Export to a folder of safetensors and JSON, and import from it."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nmtkit.checkpoint import (
    SAFETENSORS_FILE,
    SAFETENSORS_HEADER,
    Checkpoint,
    checkpoint_in,
    from_header,
    to_header,
)
from nmtkit.conversion.folder import export_folder, read_part
from nmtkit.data.corpus import write_tokenizers
from nmtkit.data.description import tokenizer_files
from nmtkit.errors import UserError
from nmtkit.model.parameters import check_finite, check_weights
from nmtkit.model.weights import as_arrays, as_tensors
from nmtkit.storage.archive import as_user_errors, parse_header


def to_safetensors(checkpoint: Checkpoint, folder: Path, weights: str = "auto", *, replace: bool = False) -> None:
    """Write a checkpoint as a folder with `model.safetensors`, `config.json` and the tokenizers.

    The tensors equal the checkpoint's bit for bit, and have the names of the model parameters. `weights` is as in
    `WeightsConfig`. Raises UserError if the package safetensors is missing, or the folder exists without `replace`.
    """
    content = serialize_tensors(as_tensors(checkpoint.chosen(weights)))
    with export_folder(folder, replace) as staging:
        write_tokenizers(staging, checkpoint.languages, checkpoint.source, checkpoint.target)
        (staging / SAFETENSORS_FILE).write_bytes(content)
        header = json.dumps(to_header(checkpoint), indent=2, ensure_ascii=False)
        (staging / SAFETENSORS_HEADER).write_text(header + "\n", encoding="utf-8")


def from_safetensors(folder: Path) -> Checkpoint:
    """Read an export as a checkpoint, without training state.

    Tensors in float16, bfloat16 and float64 become float32. Raises UserError if the package safetensors or a file is
    missing, if a weight is not finite, or if the weights do not fit the model in `config.json`.
    """
    _import_safetensors()
    if not (folder / SAFETENSORS_FILE).is_file():
        raise UserError(f"{folder} is a folder without a file {SAFETENSORS_FILE}: {checkpoint_in(folder)}")
    if not (folder / SAFETENSORS_HEADER).is_file():
        raise UserError(
            f"{folder} has no {SAFETENSORS_HEADER}, which nmt-export writes with {SAFETENSORS_FILE}: export it again"
        )
    with as_user_errors(folder):
        header = parse_header(read_part(folder / SAFETENSORS_HEADER))
        tensors = read_tensors(folder / SAFETENSORS_FILE)
        checkpoint = from_header(header, tokenizer_files, lambda name: read_part(folder / name))
        floats = {name: each.float() if each.is_floating_point() else each for name, each in tensors.items()}
        weights, shapes = as_arrays(floats), checkpoint.parameter_shapes()
        check_weights(weights, shapes)
        check_finite(weights)
    return dataclasses.replace(checkpoint, weights={name: weights[name] for name in shapes})


def serialize_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize tensors (…) as a safetensors file. Raises UserError if the package is missing."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    content: bytes = _import_safetensors().torch.save(contiguous, metadata={"format": "pt"})
    return content


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors (…) in a safetensors file by name. Raises UserError if it is damaged."""
    library = _import_safetensors()
    try:
        tensors: dict[str, Tensor] = library.torch.load_file(path)
    except library.SafetensorError as error:
        raise UserError(f"{path.name} is damaged ({error})") from error
    return tensors


def _import_safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError("this format needs the package safetensors: pip install safetensors") from error
    return safetensors
