"""Folders of models: writes exports atomically, and reads small files."""

import json
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from nmtkit.data.description import TOKENIZER_FILE
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_folder

# An export replaces a folder only if all its files have such names.
_EXPORT_FILE = re.compile(
    r"config\.json|model\.(bin|npz|safetensors|intgemm\.alphas\.bin)|(shared|source|target)_vocabulary\.json|"
    r"(generation|tokenizer)_config\.json|(target_)?vocab\.json|(vocab|source|target)\.(spm|yml)|decoder\.yml|sentencepiece\.bpe\.model|"
    rf"lex\.bin|index\.html|offline\.js|{TOKENIZER_FILE}"
)


def check_free(destination: Path, replace: bool) -> None:
    """Raise UserError if the destination exists, is not empty, and must not be replaced."""
    taken = any(destination.iterdir()) if destination.is_dir() else destination.exists()
    if taken and not replace:
        advice = "" if destination.is_dir() and not _is_export(destination) else "replace it with --force, or "
        raise UserError(f"{destination} exists: {advice}choose a different --output")


def export_folder(destination: Path, replace: bool) -> AbstractContextManager[Path]:
    """Create a temporary folder for a model, which becomes `destination` at the end.

    With `replace`, an earlier export at `destination` is replaced. Raises UserError if `destination` is not empty and
    may not be replaced, and RunError if writing fails.
    """
    check_free(destination, replace)
    return staged_folder(destination, _is_export)


def read_part(path: Path) -> bytes:
    """Read a small file of a model. Raises UserError if it is missing."""
    if not path.exists():
        raise UserError(f"{path.name} is missing")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises UserError with its name if it is missing or malformed."""
    try:
        values = json.loads(read_part(path).decode())
        json.dumps(values, ensure_ascii=False).encode()  # raises an error for lone surrogates
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not JSON ({error})") from error
    return values


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError with the file's name if it is missing, malformed or not an object."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path.name} is not a JSON object")
    return values


def _is_export(folder: Path) -> bool:
    names = [path.name for path in folder.iterdir()]
    return all(map(_EXPORT_FILE.fullmatch, names)) and any(name.startswith("model.") for name in names)
