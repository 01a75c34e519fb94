"""nmt-export: converts checkpoints for other programs, and back."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import Choice, ConfigOption, PathName, options, output_option, refuse_idle
from nmtkit.console.log import LogConfig, configure, logger
from nmtkit.conversion.config import ExportConfig
from nmtkit.errors import UserError
from nmtkit.model.config import WeightsConfig
from nmtkit.storage.outputs import check_output_file, check_output_folder

if TYPE_CHECKING:
    from nmtkit.checkpoint import Checkpoint

CTRANSLATE2, HUGGINGFACE, SAFETENSORS, CHECKPOINT = "ctranslate2", "huggingface", "safetensors", "checkpoint"
SHORTLIST, MARIAN, BERGAMOT, INT8 = "shortlist", "marian", "bergamot", "int8"
_OWNERS = {  # the options of one format
    **{CTRANSLATE2: ("quantization",), SHORTLIST: ("dataset", "translations", "frequent")},
    **{MARIAN: ("binary",), BERGAMOT: ("shortlist", "int8", "page")},
}


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options of other targets."""
    for owner, names in _OWNERS.items():
        if values["to"] != owner:
            refuse_idle(values, names, f"with --to {values['to']}")


@command("nmt-export")
@click.argument("checkpoint", type=PathName())
@click.option(
    "--to",
    cls=ConfigOption,
    heading="Result",
    required=True,
    metavar="FORMAT",
    type=Choice((INT8, CTRANSLATE2, HUGGINGFACE, SAFETENSORS, CHECKPOINT, SHORTLIST, MARIAN, BERGAMOT)),
    help="int8: checkpoint for translation on CPUs, smaller and faster to load. ctranslate2: folder for CTranslate2. "
    "huggingface: folder for transformers, with a Marian model or an imported NLLB-200, M2M-100 or mBART-50. marian: "
    "folder for Marian. bergamot: folder for Marian in a browser. safetensors: folder with model.safetensors and "
    "config.json. checkpoint: file without the training state. shortlist: file for --shortlist of nmt-generate and "
    "nmt-serve, learned from --dataset.",
)
@output_option(
    "PATH", "Folder to create, or file to create for --to int8, checkpoint or shortlist. It appears when complete."
)
@options(refuse_idle_options, export=ExportConfig, choice=WeightsConfig, log=LogConfig)
def main(checkpoint: Path, to: str, output: Path, export: ExportConfig, choice: WeightsConfig, log: LogConfig) -> None:
    """Export CHECKPOINT, or a safetensors folder written by this command, to other formats.

    \b
    nmt-export averaged.pt --to int8 --output averaged-int8.pt
    nmt-export averaged.pt --to ctranslate2 --quantization int8 --output ende-ct2
    nmt-export averaged.pt --to huggingface --output ende-marian
    nmt-export averaged.pt --to bergamot --int8 valid.en --page --output ende-browser
    nmt-export averaged.pt --to safetensors --output ende
    nmt-export ende --to checkpoint --output averaged.pt
    nmt-export averaged.pt --to shortlist --dataset data-bin/en-de --output ende.shortlist

    The export includes vocabularies and SentencePiece models. --force replaces an export or a checkpoint at --output.
    """
    configure(log)
    if to == SHORTLIST and export.dataset is None:
        raise UserError("--to shortlist needs --dataset DATASET, whose training text is aligned")

    from nmtkit.conversion.folder import check_free

    check_free(output, export.force)
    _check_output(output, to, (checkpoint, export.dataset, export.shortlist, export.int8))
    loaded = _load(checkpoint, choice.weights)
    _write(loaded, checkpoint, to, output, export, choice.weights)
    logger.info("wrote %s from %s", output, checkpoint)


def _write(loaded: "Checkpoint", checkpoint: Path, to: str, output: Path, export: ExportConfig, weights: str) -> None:
    """Write a checkpoint, which was read from the path `checkpoint`, in a format."""
    from nmtkit.checkpoint import Checkpoint, save_checkpoint
    from nmtkit.conversion.ctranslate2 import to_ctranslate2
    from nmtkit.conversion.huggingface_export import to_huggingface
    from nmtkit.conversion.int8 import to_int8
    from nmtkit.conversion.lexical import export_shortlist
    from nmtkit.conversion.marian_export import to_marian
    from nmtkit.conversion.safetensors import to_safetensors

    if to == CTRANSLATE2:
        to_ctranslate2(loaded, output, weights, export.quantization, replace=export.force)
    elif to == HUGGINGFACE:
        to_huggingface(loaded, output, weights, replace=export.force)
    elif to in (MARIAN, BERGAMOT):
        to_marian(loaded, output, weights, export, browser=to == BERGAMOT)
    elif to == SHORTLIST:
        export_shortlist(loaded, checkpoint, output, export)
    elif to == SAFETENSORS:
        to_safetensors(loaded, output, weights, replace=export.force)
    else:
        convert = to_int8 if to == INT8 else Checkpoint.without_training
        save_checkpoint(output, convert(loaded, weights))


def _load(path: Path, weights: str) -> "Checkpoint":
    """Load a checkpoint or an export with these weights. Raises UserError if a weight is not finite."""
    from nmtkit.checkpoint import load_checkpoint
    from nmtkit.conversion.safetensors import from_safetensors
    from nmtkit.model.parameters import check_finite
    from nmtkit.storage.archive import as_user_errors

    loaded = from_safetensors(path) if path.is_dir() else load_checkpoint(path)
    with as_user_errors(path):
        check_finite(loaded.chosen(weights))
    return loaded


def _check_output(output: Path, to: str, given: Iterable[Path | None]) -> None:
    """Raise UserError if the output would replace one of the `given` inputs, or a file that is not an export."""
    paths = [path for path in (*given, config_file_in_use()) if path is not None]
    inputs = [file for path in paths for file in (path, *(path.iterdir() if path.is_dir() else ()))]
    if to in (INT8, CHECKPOINT, SHORTLIST):
        check_output_file(output, inputs)
    else:
        check_output_folder(output, inputs)
    if to in (INT8, CHECKPOINT):
        from nmtkit.checkpoint import check_replaceable

        check_replaceable(output)
