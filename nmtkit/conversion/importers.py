"""The table of formats that nmt-import reads, and how to recognize them."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nmtkit.checkpoint import Checkpoint, is_export, read_progress
from nmtkit.conversion import fsmt, marian, multilingual, opennmt
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.ctranslate2_import import MODEL_FILE, from_ctranslate2
from nmtkit.conversion.fairseq import from_fairseq
from nmtkit.conversion.fairseq_tokenizers import tokenizer_files_beside
from nmtkit.conversion.huggingface import model_type
from nmtkit.conversion.huggingface_settings import search_options
from nmtkit.conversion.pickled import begins_like_pickled
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors


class Importer(NamedTuple):
    """One row of the table, which describes one format."""

    name: str  #: a model in this format, for messages
    recognizes: Callable[[Path], bool]  #: whether a file or folder has this format, by a quick look
    read: Callable[[Path, ImportConfig], Checkpoint]
    options: tuple[str, ...]  #: the options of `ImportConfig` that it uses
    search: Callable[[Path], dict[str, float | str]]  #: returns options of nmt-generate that the model recommends


_LANGUAGES = ("source_lang", "target_lang")
IMPORTERS = (  # the first that recognizes a path reads it
    Importer(
        "a Hugging Face Marian model",
        lambda path: model_type(path) == marian.MODEL_TYPE,
        marian.from_marian,
        _LANGUAGES,
        lambda path: search_options(path, {}),
    ),
    Importer(
        "a Hugging Face M2M-100, NLLB or mBART model",
        lambda path: model_type(path) in multilingual.MODEL_TYPES,
        multilingual.from_multilingual,
        (*_LANGUAGES, "spm_model"),
        multilingual.search_defaults,
    ),
    Importer(
        "a Hugging Face FSMT model",
        lambda path: model_type(path) == fsmt.MODEL_TYPE,
        fsmt.from_fsmt,
        _LANGUAGES,
        lambda path: search_options(path, fsmt.SEARCH_DEFAULTS),
    ),
    Importer(
        "a CTranslate2 model",
        lambda path: (path / MODEL_FILE).exists(),
        from_ctranslate2,
        (*_LANGUAGES, "spm_model"),
        lambda path: {},
    ),
    Importer(
        "an Eole model",
        opennmt.is_eole,
        opennmt.from_eole,
        (*_LANGUAGES, "spm_model"),
        lambda path: opennmt.SEARCH_DEFAULTS,
    ),
    Importer(
        "an OpenNMT-py checkpoint",
        opennmt.is_opennmt,
        opennmt.from_opennmt,
        (*_LANGUAGES, "spm_model"),
        lambda path: opennmt.SEARCH_DEFAULTS,
    ),
    Importer(
        "a fairseq checkpoint",
        lambda path: path.is_file() and path.suffix != ".npz" and begins_like_pickled(path),  # .npz is Marian's
        from_fairseq,
        (*_LANGUAGES, "dict", "bpe_codes", "spm_model"),
        lambda path: {"beam": 5, "length_penalty_form": "power", "length_penalty": 1.0},  # fairseq's own defaults
    ),
)


def find_importer(path: Path) -> Importer:
    """Find the importer for a file or folder. Importers run no code from it, and reject unsupported features.

    Raises UserError if the path does not exist or has an unknown format.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if _is_checkpoint(path):
        raise UserError(f"{path} is an nmtkit checkpoint: use it directly")
    if is_export(path):
        raise UserError(f"nmt-export wrote {path}: convert it with nmt-export {path} --to checkpoint")
    with as_user_errors(path, "a model to import"):
        if _is_opus_archive(path):
            raise UserError(
                f"{path} is an archive of OPUS-MT in Marian's own format, which nmtkit does not read: most of these "
                "models are also on Hugging Face: hf download Helsinki-NLP/opus-mt-SOURCE-TARGET --local-dir FOLDER"
            )
        found = next((importer for importer in IMPORTERS if importer.recognizes(path)), None)
        if found is None:
            kind = model_type(path)
            reason = "not a model that nmtkit imports" if kind is None else f"models of type {kind} are not supported"
            if kind == "nllb-moe":
                raise UserError(f"{reason}: a mixture of experts: use a dense model, such as nllb-200-distilled-1.3B")
            advice = f"give {', or '.join(importer.name for importer in IMPORTERS)}"
            if files := [file for file in sorted(path.glob("*.pt")) if not _is_checkpoint(file)]:
                advice = f"if {files[0]} is a fairseq checkpoint, give that file"
            raise UserError(f"{reason}: {advice}")
    return found


def input_files(model: Path, options: ImportConfig) -> list[Path]:
    """List the files that an import may read: the model, files in its folder, tokenizer files and files in `options`.

    The list excludes nmtkit checkpoints in the folder, the results of earlier imports.
    """
    with as_user_errors(model, "a model to import"):
        if model.is_dir():
            inside = [path for path in model.iterdir() if not _is_checkpoint(path)]
        else:
            inside = tokenizer_files_beside(model.parent)
    return [model, *inside, *options.paths()]


def _is_opus_archive(path: Path) -> bool:
    """Whether a path is a zip archive as published by OPUS-MT, with a Marian model and its settings."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "decoder.yml" in archive.namelist()


def _is_checkpoint(path: Path) -> bool:
    """Whether a path is an nmtkit checkpoint, by its header."""
    try:
        read_progress(path)
    except UserError:
        return False
    return True
