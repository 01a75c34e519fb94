"""The folder of an export: written atomically, with the tokenizers beside the model."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmtkit.atomic_io import staged_folder
from nmtkit.checkpoint import Checkpoint
from nmtkit.data.corpus import write_tokenizer
from nmtkit.data.description import model_name, vocabulary_name
from nmtkit.errors import UserError
from nmtkit.text import read_bytes
from nmtkit.tokenizer import SPACE, Tokenizer, make_tokenizer
from nmtkit.vocab import Vocabulary

_MAX_BYTES = 1 << 28  # of a vocabulary or a SentencePiece model
# A folder is replaced by a new export only if all its files have such names.
_EXPORT_FILE = re.compile(
    r"config\.json|model\.(bin|safetensors)|(shared|source|target)_vocabulary\.json"
    r"|vocab(\..+)?\.txt|spm(\..+)?\.model"
)


def check_free(destination: Path, replace: bool) -> None:
    """Raise UserError if the destination exists, is not empty, and may not be replaced."""
    taken = any(destination.iterdir()) if destination.is_dir() else destination.exists()
    if taken and not replace:
        raise UserError(f"{destination} exists: replace it with --force, or choose another --output")


@contextmanager
def export_folder(destination: Path, checkpoint: Checkpoint, replace: bool) -> Iterator[Path]:
    """Yield a temporary folder to write a model to; at the end the tokenizers are added, named as in a dataset.

    With `replace`, an earlier export at the destination is replaced. Raises UserError if the destination exists, and
    RunError if writing fails.
    """
    check_free(destination, replace)
    with staged_folder(destination, _is_export_file, _is_export) as staging:
        yield staging
        if checkpoint.joined:
            write_tokenizer(staging, checkpoint.source, None)
        else:
            write_tokenizer(staging, checkpoint.source, checkpoint.source_language)
            write_tokenizer(staging, checkpoint.target, checkpoint.target_language)


def read_tokenizer(folder: Path, kind: str, language: str | None) -> Tokenizer:
    """Read the tokenizer of one side of an export; `language` is None for a joined vocabulary.

    Raises UserError if a file is not a regular file.
    """
    vocabulary = Vocabulary.from_bytes(_read_file(folder / vocabulary_name(language)))
    return make_tokenizer(kind, vocabulary, b"" if kind == SPACE else _read_file(folder / model_name(language)))


def _read_file(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # a pipe would block
        raise UserError(f"{path.name} is not a regular file")
    return read_bytes(path, _MAX_BYTES)


def _is_export_file(name: str) -> bool:
    return _EXPORT_FILE.fullmatch(name) is not None


def _is_export(folder: Path) -> bool:
    names = [path.name for path in folder.iterdir()]
    return all(map(_is_export_file, names)) and any(name.startswith("model.") for name in names)
