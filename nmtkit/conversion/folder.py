"""What every export has beside its weights: a folder that appears whole or not at all, and the tokenizers."""

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

# An export may be replaced by a new one; a folder that holds anything else may not.
_LARGEST = 1 << 28  # bytes of a vocabulary or a SentencePiece model
_OWN_FILE = re.compile(
    r"config\.json|model\.(bin|safetensors)|(shared|source|target)_vocabulary\.json"
    r"|vocab(\..+)?\.txt|spm(\..+)?\.model"
)


def check_free(destination: Path, replace: bool) -> None:
    """Raise UserError where there is something at the destination, and it is not to be replaced."""
    taken = any(destination.iterdir()) if destination.is_dir() else destination.exists()
    if taken and not replace:
        raise UserError(f"{destination} exists: replace it with --force, or choose another --output")


@contextmanager
def export_folder(destination: Path, checkpoint: Checkpoint, replace: bool) -> Iterator[Path]:
    """A folder to write a model into; the vocabularies and SentencePiece models come beside it, named as in a dataset.

    An export that stands at the destination already is replaced if `replace` says so. Raises UserError where the
    destination is taken, RunError where writing fails.
    """
    check_free(destination, replace)
    with staged_folder(destination, _is_export_file, _is_export) as staging:
        yield staging
        write_tokenizer(staging, checkpoint.source, _language(checkpoint.source_language, checkpoint.joined))
        if not checkpoint.joined:
            write_tokenizer(staging, checkpoint.target, _language(checkpoint.target_language, joined=False))


def read_tokenizer(folder: Path, kind: str, language: str, joined: bool) -> Tokenizer:
    """The tokenizer of one side of an export. UserError where a file is not a regular one."""
    name = _language(language, joined)
    vocabulary = Vocabulary.from_bytes(_content(folder / vocabulary_name(name)))
    return make_tokenizer(kind, vocabulary, b"" if kind == SPACE else _content(folder / model_name(name)))


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():  # a pipe would block
        raise UserError(f"{path.name} is not a regular file")
    return read_bytes(path, _LARGEST)


def _language(language: str, joined: bool) -> str | None:
    """The language in the names of a side's files, None where the sides share them."""
    if not joined and Path(language).name != language:
        raise UserError(f"the language {language!r} cannot be part of a file name")
    return None if joined else language


def _is_export_file(name: str) -> bool:
    return _OWN_FILE.fullmatch(name) is not None


def _is_export(folder: Path) -> bool:
    names = [path.name for path in folder.iterdir()]
    return all(map(_is_export_file, names)) and any(name.startswith("model.") for name in names)
