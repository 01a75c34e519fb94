"""nmt-generate: translates text."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.command import command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import PathName, options, prefer_command_line, refuse_idle
from nmtkit.cli.translation_options import checkpoint_option, refuse_idle_search_options
from nmtkit.console.log import LogConfig, configure
from nmtkit.decoding.config import ALIGNMENT_FORMATS, GenerationOptions, OutputConfig, SearchConfig
from nmtkit.errors import UserError
from nmtkit.storage.atomic import partial_path, resolve, resolve_file
from nmtkit.storage.outputs import check_output_file, check_stdout
from nmtkit.text.document_formats import REMEDIES, ZIPPED, chosen_format
from nmtkit.text.input_stream import STANDARD_STREAM
from nmtkit.text.reading import COMPRESSED, check_readable

_OF_PLAIN_LINES = ("nbest", "score", "prefix", "constraints", "alignment", "attention_html")
_OF_LINES = (
    *_OF_PLAIN_LINES,
    *("input_format", "format", "resume", "shard", "interactive"),
    *("sacrebleu", "tokenized_bleu", "reference", "copy_unknown"),
)


def refuse_idle_options(values: dict[str, Any]) -> None:
    """Raise UserError for options without effect."""
    prefer_command_line(values, "dataset", "input")
    prefer_command_line(values, "shard", "sacrebleu", "tokenized_bleu")
    prefer_command_line(values, "resume", "sacrebleu", "tokenized_bleu", "attention_html")
    has_tags = _refuse_markup_options(values)
    if values["dataset"] is None:
        refuse_idle(values, ("split", "verify"), "without a DATASET")
    if not values["sacrebleu"] and not values["tokenized_bleu"]:
        refuse_idle(values, ("reference",), "without --sacrebleu or --tokenized-bleu")
    if values["score"] is None:
        refuse_idle_search_options(values)
    else:
        _refuse_search_options(values)
    if values["format"] == "text":
        refuse_idle(values, ("alignment",), "with --format text: use jsonl, tsv or pharaoh")
    if not (has_tags or values["alignment"] or values["copy_unknown"] or values["format"] in ALIGNMENT_FORMATS):
        refuse_idle(values, ("alignment_layer",), "without --alignment")


def _refuse_markup_options(values: dict[str, Any]) -> bool:
    """Raise UserError for options that a document or lines with tags do not support. Return whether there are tags."""
    if values["dataset"] is not None:
        refuse_idle(values, ("document", "markup", "protect", "input_format"), "with a DATASET, whose text has no tags")
    path = values["input"] if values["dataset"] is None else None
    format = chosen_format(values["document"], values["markup"], path)
    if format is not None:
        refuse_idle(values, (*_OF_LINES, "markup"), f"on a document ({format}), only on lines of text")
    elif values["markup"] or values["protect"]:
        refuse_idle(values, _OF_PLAIN_LINES, "with --markup or --protect")
    if format != "html" and values["markup"] is None:
        refuse_idle(values, ("ignore_tags",), "without --markup or an HTML document")
    if format not in ("csv", "tsv"):
        refuse_idle(values, ("columns",), "without --document csv or tsv")
    if format != "json":
        refuse_idle(values, ("keys",), "without --document json")
    return format is not None or values["markup"] is not None


def _refuse_search_options(values: dict[str, Any]) -> None:
    penalty, alignment = {"length_penalty", "length_penalty_form"}, {"alignment", "alignment_layer"}
    searching = {"shortlist", *(field.name for field in fields(SearchConfig))} - penalty - alignment
    prefer_command_line(values, "score", "prefix", "constraints", "glossary")
    refuse_idle(values, searching, "with --score, which does not search")
    if values["format"] == "text":
        refuse_idle(values, penalty, "with --score and --format text, which prints log-probabilities")


@command(
    "nmt-generate",
    common="checkpoint input output format split sacrebleu reference beam length_penalty nbest sampling source_lang "
    "target_lang source_tag glossary overlong max_tokens resume device precision threads workers quiet config",
)
@click.argument("dataset", required=False, type=PathName())
@checkpoint_option(required=True)
@options(refuse_idle_options, **GenerationOptions.groups(), log=LogConfig)
def main(dataset: Path | None, checkpoint: tuple[Path, ...], log: LogConfig, **groups: Any) -> None:
    """Translate raw text: stdin, a file, or a split of DATASET.

    \b
    nmt-generate --checkpoint averaged.pt < input.en > output.de
    nmt-generate --checkpoint averaged.pt --input input.en.gz --output output.de
    nmt-generate --checkpoint averaged.pt data-bin/en-de --split test --sacrebleu

    The output has one line for each input line, in order. Blank lines stay blank.
    """
    configure(log)
    chosen = GenerationOptions(**groups)
    _check_input(dataset, chosen)
    _check_output(chosen, models=len(checkpoint))
    asked, reference = chosen.requests, chosen.evaluation.reference
    beside = (asked.prefix, asked.constraints, asked.glossary, asked.score, reference, config_file_in_use())
    read = (*checkpoint, chosen.engine.shortlist, chosen.input.path, *beside)
    _check_files(chosen.output, read, reads_stdin=dataset is None and chosen.input.path is None)

    from nmtkit.decoding.generation import generate

    generate(checkpoint, chosen, dataset)


def _check_input(dataset: Path | None, options: GenerationOptions) -> None:
    source, evaluation = options.input, options.evaluation
    remedy = REMEDIES.get(source.path.suffix.lower()) if source.path and not options.markup.document else None
    if remedy:
        raise UserError(f"--input {source.path}: this format is not supported: {remedy}")
    if dataset is not None and source.path is not None:
        raise UserError(f"{dataset} and --input {source.path} are mutually exclusive: use one of them")
    if dataset is not None and dataset.is_file():
        raise UserError(f"{dataset} is a file, not a dataset: use --input {dataset} to translate it")
    if evaluation.is_wanted and dataset is None and evaluation.reference is None:
        raise UserError("--sacrebleu and --tokenized-bleu need --reference FILE, or a DATASET as input")
    if evaluation.is_wanted and source.shard is not None:
        raise UserError(
            "--shard translates only a part of the text: concatenate the outputs and score them with nmt-score"
        )


def _check_output(options: GenerationOptions, models: int) -> None:
    output, page = options.output, options.output.attention_html
    ending = output.path.suffix.lower().removeprefix(".") if output.path else ""
    if output.path and options.document != ending and (options.document in ZIPPED or ending in ZIPPED):
        kind = f"a document of the format {options.document}" if options.document else "lines of text"
        raise UserError(f"--output {output.path}: the output is {kind}: choose a matching file extension for --output")
    if output.path is not None and output.path.suffix in COMPRESSED:
        raise UserError(f"--output {output.path}: the output is not compressed: omit {output.path.suffix}")
    if output.resume and output.path is None:
        raise UserError("--resume needs --output FILE")
    if output.resume and page is not None:
        raise UserError("--resume and --attention-html are mutually exclusive: use one of them")
    if output.resume and options.evaluation.is_wanted:
        raise UserError("--resume cannot score lines of an earlier run: score the finished file with nmt-score")
    if page is not None and models > 1:
        raise UserError("--attention-html shows one model: give one --checkpoint (nmt-average combines several)")
    if page == STANDARD_STREAM and output.path is None:
        raise UserError("--attention-html -: translations go to stdout: write the page to a file, or use --output FILE")


def _check_files(output: OutputConfig, read: Iterable[Path | None], reads_stdin: bool) -> None:
    """Raise UserError for files that cannot be read, and outputs that cannot be written or would replace an input."""
    sources = [path for path in read if path is not None]
    page = None if output.attention_html == STANDARD_STREAM else output.attention_html
    text = [] if output.path is None else [output.path, partial_path(resolve_file(output.path))]
    written = [path for path in (*text, page) if path is not None]
    for path in written:
        check_output_file(path, sources)
    if len(set(map(resolve, written))) < len(written):
        raise UserError(f"--output and --attention-html are both {output.path}: use two files")
    if STANDARD_STREAM in (output.path or STANDARD_STREAM, output.attention_html):
        check_stdout(sources, reads_stdin)
    for path in sources:
        check_readable(path)
