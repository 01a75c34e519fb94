"""nmt-import: converts models of other toolkits to checkpoints."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import PathName, options, output_option, prefer_command_line, refuse_idle
from nmtkit.config import as_flags
from nmtkit.console.log import LogConfig, configure, logger
from nmtkit.conversion.config import GROWING, ImportConfig
from nmtkit.storage.outputs import check_output_file


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options without effect for any model."""
    prefer_command_line(values, "bpe_codes", "spm_model")
    if values["add_language"] is None:
        refuse_idle(values, ("like",), "without --add-language")


@command("nmt-import")
@click.argument("model", type=PathName())
@output_option("FILE", "Checkpoint to write. An existing file is replaced only if it is a checkpoint.")
@options(refuse_idle_options, config=ImportConfig, log=LogConfig)
def main(model: Path, output: Path, config: ImportConfig, log: LogConfig) -> None:
    """Import MODEL, a model from a different toolkit, as a checkpoint.

    \b
    nmt-import opus-mt-en-de --output opus.pt
    nmt-import wmt19/model.pt --dict dict.en.txt dict.de.txt -s en -t de --output wmt19.pt
    nmt-import marian/model.npz --dict vocab.spm vocab.spm -s en -t de --output marian.pt

    MODEL is a folder of Hugging Face transformers (a Marian model, such as OPUS-MT, FSMT, NLLB-200, M2M-100 or
    mBART-50), of CTranslate2, Eole or Marian, or a file of fairseq, OpenNMT-py or Marian. The checkpoint contains the
    tokenizers: it translates raw text and can be fine-tuned. No code in MODEL is executed. Models that nmtkit cannot
    reproduce are rejected.
    """
    configure(log)

    from nmtkit.checkpoint import check_replaceable, save_checkpoint
    from nmtkit.conversion.importers import find_importer, input_files, snapshot_in

    model = snapshot_in(model)
    check_output_file(output, (*input_files(model, config), config_file_in_use()))
    check_replaceable(output)
    importer = find_importer(model, config.grows)
    unused = {field.name for field in fields(ImportConfig)} - {*importer.options, *GROWING}
    refuse_idle({}, unused, f"with {importer.name}")
    logger.info("%s is %s", model, importer.name)
    checkpoint = importer.load(model, config)
    save_checkpoint(output, checkpoint)
    logger.info("wrote %s from %s", output, model)
    if checkpoint.search:
        logger.info("search settings, stored as its defaults: %s", as_flags(checkpoint.search))
    languages = {"source_lang": "LANG", "target_lang": "LANG"} if checkpoint.target.language_codes else {}
    logger.info("translate with it: nmt-generate %s", as_flags({"checkpoint": output, **languages}))
    logger.info("fine-tune it: nmt-train DATASET %s", as_flags({"init_from": output}))
