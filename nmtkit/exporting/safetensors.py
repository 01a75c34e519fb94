"""A folder of safetensors and JSON, for whatever reads these; and the way back."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from nmtkit.checkpoint import SAFETENSORS_FILE, Checkpoint, from_header, read_header, to_header
from nmtkit.errors import UserError
from nmtkit.exporting.folder import export_folder, read_tokenizer

HEADER = "config.json"


def to_safetensors(checkpoint: Checkpoint, folder: Path, weights: str = "auto", *, replace: bool = False) -> None:
    """Write a checkpoint's model as `model.safetensors` and `config.json`, its tokenizers beside them.

    The tensors have the names of the model's parameters, and are the checkpoint's bit by bit. `weights` are as in
    `WeightsConfig`. Raises UserError where the package is missing or the folder is taken.
    """
    library = _library()
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.chosen(weights).items()}
    with export_folder(folder, checkpoint, replace) as staging:
        (staging / SAFETENSORS_FILE).write_bytes(library.torch.save(tensors, metadata={"format": "pt"}))
        header = json.dumps(to_header(checkpoint), indent=2, ensure_ascii=False)
        (staging / HEADER).write_text(header + "\n", encoding="utf-8")


def from_safetensors(folder: Path) -> Checkpoint:
    """The checkpoint that such a folder holds, without what only a training needs.

    Tensors of other number formats become float32. Raises UserError where the package or a file is missing, or where
    the weights are not those of the model that `config.json` describes.
    """
    library = _library()
    for name in (SAFETENSORS_FILE, HEADER):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: give a checkpoint, or a folder that nmt-export has made of one")
    try:
        header = read_header((folder / HEADER).read_bytes())
        weights = library.torch.load_file(folder / SAFETENSORS_FILE)
        checkpoint = from_header(header, weights, lambda side: _tokenizer(folder, header, side))
        names = [name for name, _ in checkpoint.build_model().named_parameters()]
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    except (library.SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: not a model that nmt-export has written ({error})") from error
    return dataclasses.replace(checkpoint, weights={name: weights[name].float() for name in names})


def _tokenizer(folder: Path, header: dict[str, Any], side: str) -> Any:
    kind, language = header["tokenizer"][side], header[f"{side}_language"]
    return read_tokenizer(folder, kind, language, header["joined_vocabulary"])


def _library() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError("this format needs the package safetensors: pip install safetensors") from error
    return safetensors
