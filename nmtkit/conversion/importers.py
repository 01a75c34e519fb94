"""The table of formats that nmt-import reads, and how to recognize them."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nmtkit.checkpoint import Checkpoint, is_export, load_checkpoint, read_progress
from nmtkit.config import flag
from nmtkit.console.log import logger
from nmtkit.conversion import fsmt, marian, multilingual, opennmt
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.ctranslate2_import import MODEL_FILE, from_ctranslate2
from nmtkit.conversion.fairseq import from_fairseq
from nmtkit.conversion.fairseq_tokenizers import tokenizer_files_beside
from nmtkit.conversion.huggingface import model_type
from nmtkit.conversion.huggingface_settings import search_options
from nmtkit.conversion.marian_file import find_model
from nmtkit.conversion.marian_import import from_marian_file, search_settings
from nmtkit.conversion.pickled import SIGNATURES
from nmtkit.errors import UserError
from nmtkit.storage.archive import as_user_errors
from nmtkit.storage.files import begins_with
from nmtkit.text.changed_vocabularies import Changed, with_characters, with_symbol
from nmtkit.text.input_stream import chunks
from nmtkit.text.reading import read_lines
from nmtkit.text.tokenizer import SPACE


class Importer(NamedTuple):
    """One row of the table, which describes one format."""

    name: str  #: a model in this format, for messages
    recognizes: Callable[[Path], bool]  #: whether a file or folder has this format, by a quick look
    read: Callable[[Path, ImportConfig], Checkpoint]
    options: tuple[str, ...]  #: the options of `ImportConfig` that it uses
    search: Callable[[Path], dict[str, float | str]] = lambda path: {}  #: options of nmt-generate in other files
    allows_unknown: bool = True  #: whether its toolkit lets outputs contain the unknown token

    def load(self, path: Path, options: ImportConfig) -> Checkpoint:
        """Read a model as a checkpoint, whose search defaults are the options that the model recommends."""
        checkpoint = self.read(path, options)
        tokenizers = " or ".join(flag(name) for name in ("bpe_codes", "spm_model") if name in self.options)
        if checkpoint.source.kind == SPACE and tokenizers:
            message = "no tokenizer: the model cannot translate raw text, only text segmented like its training text"
            logger.warning("%s: give %s FILE if you have it", message, tokenizers)
        search = {"allow_unknown": self.allows_unknown, **self.search(path), **checkpoint.search}
        checkpoint = replace(checkpoint, search=search)
        if options.add_characters:
            texts = (chunk for file in options.add_characters for chunk in chunks(read_lines(file), _LINES))
            checkpoint = _grown(checkpoint, with_characters((checkpoint.source, checkpoint.target), texts))
        if options.add_language and options.like:
            symbols = options.add_language, options.like
            checkpoint = _grown(checkpoint, with_symbol((checkpoint.source, checkpoint.target), *symbols))
        return checkpoint


def _grown(checkpoint: Checkpoint, changed: Changed) -> Checkpoint:
    new = {piece for side in changed.tokenizers for piece in side.vocab.pieces}
    added = sorted(new - {*checkpoint.source.vocab.pieces, *checkpoint.target.vocab.pieces})
    logger.info("new pieces: %d %s", len(added), " ".join(added[:_SHOWN]) + (" …" if len(added) > _SHOWN else ""))
    return checkpoint.with_vocabularies(changed)


_LINES = 10_000  # of a text to encode at a time
_SHOWN = 20  # new pieces in a message
_LANGUAGES = ("source_lang", "target_lang")
_WITH_MODEL = (*_LANGUAGES, "spm_model")
IMPORTERS = (  # the first that recognizes a path reads it
    Importer(
        "a Hugging Face Marian model",
        lambda path: model_type(path) == "marian",
        marian.from_marian,
        _LANGUAGES,
        lambda path: search_options(path, {}),
    ),
    Importer(
        "a Hugging Face M2M-100, NLLB or mBART model",
        lambda path: model_type(path) in ("m2m_100", "mbart"),
        multilingual.from_multilingual,
        _WITH_MODEL,
        lambda path: search_options(path, {}, begun=1),
    ),
    Importer(
        "a Hugging Face FSMT model",
        lambda path: model_type(path) == "fsmt",
        fsmt.from_fsmt,
        _LANGUAGES,
        lambda path: search_options(path, fsmt.SEARCH_DEFAULTS),
    ),
    Importer(
        "a Marian model",
        lambda path: find_model(path) is not None,
        from_marian_file,
        (*_WITH_MODEL, "dict"),
        search_settings,
    ),
    Importer("a CTranslate2 model", lambda path: (path / MODEL_FILE).exists(), from_ctranslate2, _WITH_MODEL),
    Importer("an Eole model", opennmt.is_eole, opennmt.from_eole, _WITH_MODEL),
    Importer("an OpenNMT-py checkpoint", opennmt.is_opennmt, opennmt.from_opennmt, _WITH_MODEL),
    Importer(
        "a fairseq checkpoint",
        lambda path: path.is_file() and begins_with(path, SIGNATURES),
        from_fairseq,
        (*_WITH_MODEL, "dict", "bpe_codes"),
        lambda path: {"beam": 5, "length_penalty_form": "power", "length_penalty": 1.0},  # fairseq's own defaults
        allows_unknown=False,
    ),
)


_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_OTHER_MODELS = {  # values of model_type in config.json -> what the model is, and what to do
    "t5 mt5 umt5 switch_transformers": "a T5 model, such as MADLAD-400, which nmtkit does not support (relative "
    "position biases, gated layers): translate with transformers, or with CTranslate2 after ct2-transformers-converter",
    "whisper speech_to_text wav2vec2 seamless_m4t_v2": "a speech model: transcribe with its own program, then "
    "translate the transcript with a text translation model",
    "gpt2 gpt_neox gptj opt bloom llama mistral mixtral gemma gemma2 gemma3 gemma3_text phi3 qwen2 qwen3 cohere2": "a "
    "decoder-only language model, which nmtkit does not support: use vLLM or llama.cpp, or train on its translations",
    "nllb-moe": "a mixture of experts, which nmtkit does not support: use a dense model, such as "
    "nllb-200-distilled-1.3B",
    "bert roberta xlm-roberta": "an encoder alone, which cannot translate: use a translation model, such as OPUS-MT",
}


def find_importer(path: Path, grows: bool = False) -> Importer:
    """Find the importer for a file or folder. Importers run no code from it, and reject unsupported features.

    With `grows`, it may be an nmtkit checkpoint. Raises UserError if the path does not exist or has an unknown format.
    """
    if not path.exists():
        is_hub_name = _HUB_NAME.fullmatch(str(path)) and not path.parent.exists()
        download = f": is it at Hugging Face? hf download {path} --local-dir {path.name}" if is_hub_name else ""
        raise UserError(f"{path}: no such file or folder{download}")
    if _is_checkpoint(path):
        if grows:
            return Importer("an nmtkit checkpoint", _is_checkpoint, lambda path, _: load_checkpoint(path), ())
        raise UserError(f"{path} is an nmtkit checkpoint: use it directly")
    if is_export(path):
        raise UserError(f"nmt-export wrote {path}: convert it with nmt-export {path} --to checkpoint")
    with as_user_errors(path, "a model to import"):
        if _is_opus_archive(path):
            raise UserError(f"{path} is an archive of OPUS-MT: unpack it, and import the file .npz inside")
        found = next((importer for importer in IMPORTERS if importer.recognizes(path)), None)
        if found is None:
            kind = model_type(path)
            if other := next((text for types, text in _OTHER_MODELS.items() if kind in types.split()), ""):
                raise UserError(f"{path} is {other}")
            reason = "not a model that nmtkit imports" if kind is None else f"models of type {kind} are not supported"
            advice = f"give {', or '.join(importer.name for importer in IMPORTERS)}"
            if files := [file for file in sorted(path.glob("*.pt")) if not _is_checkpoint(file)]:
                advice = f"if {files[0]} is a fairseq checkpoint, give that file"
            raise UserError(f"{reason}: {advice}")
    return found


def snapshot_in(path: Path) -> Path:
    """Return the snapshot of branch main in a folder `models--…` of Hugging Face's cache; any other path unchanged."""
    main = path / "refs" / "main"
    return path / "snapshots" / main.read_text(encoding="utf-8").strip() if main.is_file() else path


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
    try:
        read_progress(path)
    except UserError:
        return False
    return True
