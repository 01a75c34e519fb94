"""The formats that nmt-import reads, and which of them a path has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nmtkit.archive import as_user_errors
from nmtkit.checkpoint import Checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.huggingface import generation_options, model_type
from nmtkit.conversion.marian import from_marian
from nmtkit.errors import UserError


class Importer(NamedTuple):
    """One format."""

    name: str  #: of a model in this format, for messages
    recognizes: Callable[[Path], bool]  #: whether a file or folder has this format, by a look at little of it
    read: Callable[[Path, ImportConfig], Checkpoint]
    options: tuple[str, ...]  #: those of `ImportConfig` that it uses
    search: Callable[[Path], dict[str, Any]]  #: the options of nmt-generate that the model recommends


IMPORTERS = (
    Importer(
        "Marian model of Hugging Face",
        lambda path: model_type(path) == "marian",
        from_marian,
        ("source_lang", "target_lang"),
        generation_options,
    ),
)


def find_importer(path: Path) -> Importer:
    """The importer of a file or folder. Raises UserError if the path does not exist or has an unknown format."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    with as_user_errors(path, "a model to import"):
        found = next((importer for importer in IMPORTERS if importer.recognizes(path)), None)
        if found is None:
            kind = model_type(path)
            reason = "not a model that nmtkit imports" if kind is None else f"models of type {kind} are not supported"
            raise UserError(f"{reason}: give a {', or a '.join(importer.name for importer in IMPORTERS)}")
    return found


def import_model(path: Path, importer: Importer, options: ImportConfig) -> Checkpoint:
    """Read a model as a checkpoint, without training state.

    Nothing in its files can run code. Raises UserError for a damaged file, and for what nmtkit's models lack.
    """
    with as_user_errors(path, f"a {importer.name}"):
        return importer.read(path, options)
