"""nmt-import: converts models of other toolkits to checkpoints."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import PathName, ignore_from_file, options, output_option, refuse_idle
from nmtkit.config import flag
from nmtkit.console.log import LogConfig, configure, logger
from nmtkit.conversion.config import ImportConfig
from nmtkit.storage.outputs import check_output_file


def ignore_excluded_options(values: dict[str, Any]) -> None:
    """Ignore the tokenizer in the `--config` file if the command line gives one."""
    ignore_from_file(values, ["bpe_codes"], "spm_model")
    ignore_from_file(values, ["spm_model"], "bpe_codes")


@command("nmt-import")
@click.argument("model", type=PathName())
@output_option("FILE", "Checkpoint to write. An existing file is replaced only if it is a checkpoint.")
@options(ignore_excluded_options, config=ImportConfig, log=LogConfig)
def main(model: Path, output: Path, config: ImportConfig, log: LogConfig) -> None:
    """Import MODEL, a model from a different toolkit, as a checkpoint.

    \b
    nmt-import opus-mt-en-de --output opus.pt
    nmt-import wmt19/model.pt --dict dict.en.txt dict.de.txt -s en -t de --output wmt19.pt

    MODEL is a folder of Hugging Face transformers (a Marian model, such as OPUS-MT, FSMT, NLLB-200, M2M-100 or
    mBART-50), a folder of CTranslate2 or Eole, or a file of fairseq or OpenNMT-py. The checkpoint contains the
    tokenizers: it translates raw text and can be fine-tuned. No code in MODEL is executed. Models that nmtkit cannot
    reproduce are rejected.
    """
    configure(log)

    from nmtkit.checkpoint import check_replaceable, save_checkpoint
    from nmtkit.conversion.importers import find_importer, input_files

    check_output_file(output, (*input_files(model, config), config_file_in_use()))
    check_replaceable(output)
    importer = find_importer(model)
    unused = {field.name for field in fields(ImportConfig)} - set(importer.options)
    refuse_idle(unused, f"with {importer.name}")
    logger.info("%s is %s", model, importer.name)
    checkpoint = importer.read(model, config)
    search = importer.search(model)
    save_checkpoint(output, checkpoint)
    logger.info("wrote %s from %s", output, model)
    logger.info("translate with it: %s", _shown(["nmt-generate", "--checkpoint", str(output)], search))
    logger.info("fine-tune it: %s", _shown(["nmt-train", "DATASET", "--init-from", str(output)], {}))


def _shown(words: list[str], options: Mapping[str, object]) -> str:
    """Format a command to copy, with options by name."""
    for name, value in options.items():
        words += [flag(name)] if value is True else [flag(name), str(value)]
    return shlex.join(words)
