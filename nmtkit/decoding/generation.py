"""The work of nmt-generate: translates an input, resumes and scores the output, and shows attention."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from nmtkit.checkpoint import load_checkpoint
from nmtkit.console.log import Progress, logger
from nmtkit.data.corpus import Dataset
from nmtkit.decoding.attention_page import at_most_a_page, write_attention_page
from nmtkit.decoding.config import ALIGNMENT_FORMATS, GenerationOptions, OutputConfig, split_names
from nmtkit.decoding.evaluation import read_references, report_scores
from nmtkit.decoding.formats import LOG_PROB, rows
from nmtkit.decoding.inputs import Input, SplitInput, TextInput, open_dataset, shard_of
from nmtkit.decoding.requests import Request, RequestFiles, tsv_requests
from nmtkit.decoding.resume import check_same, find_whole_lines
from nmtkit.decoding.stats import StreamStats
from nmtkit.decoding.translation import Translation
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.storage.atomic import resumable_file, staged_file
from nmtkit.storage.outputs import writing_stdout
from nmtkit.text.document_formats import guess
from nmtkit.text.input_stream import chunks
from nmtkit.text.languages import SEVERAL
from nmtkit.text.segment import PLACEHOLDERS, Segment
from nmtkit.text.tags import tag_ids

Observer = Callable[[Translation], object]


def generate(paths: Sequence[Path], options: GenerationOptions, dataset: Path | None = None) -> None:
    """Translate a split of `dataset`, a file or stdin with the checkpoints of `paths`, and report on stderr.

    Several checkpoints form an ensemble. Raises UserError if the options contradict each other, the input or the
    model, and RunError if the translation fails.
    """
    request_files = RequestFiles(options.requests, options.search.ignore_case)
    checkpoints = [load_checkpoint(path) for path in paths]
    target = options.requests.target_lang or ""
    names_variety = not checkpoints[0].target.language_codes and (options.evaluation.is_wanted or options.document)
    given = (options.requests.source_lang or "", "" if names_variety else target)
    translator = Translator.of(checkpoints, options.engine, options.weights, paths, given)
    options = replace(options, search=options.search.over(translator.search))
    translator.log_settings(options.search)
    tag_ids(options.requests.source_tag, translator.source)
    opened = open_dataset(dataset, checkpoints[0], paths[0], options.reading.verify) if dataset else None
    source = _input(options, opened, translator)
    languages = opened.languages if opened else translator.languages
    target_language = target or languages[1]
    references = read_references(options.evaluation, source, translator.target)
    texts, shown = list[str](), list[Translation]()
    observers: list[Observer] = []
    if references is not None:
        observers.append(lambda translation: texts.append(translation.text))
    if options.output.attention_html is not None:
        checkpoints[0].chosen()  # the page needs fp32 weights
        observers.append(shown.append)
    start = time.monotonic()
    format = options.document
    if format is None:
        stats = translate(translator, source, request_files, options, observers)
    else:
        stats = translate_file(translator, format, target_language, request_files, options)
    seconds = time.monotonic() - start
    request_files.report()
    stats.report(seconds, source.name, languages[0], translator.model, _next_command(options, target_language))
    if options.output.attention_html is not None:
        attentions = (translator.attention_of(each) for each in shown if each.candidates[0].tokens)
        write_attention_page(options.output.attention_html, attentions, languages)
    if references is not None:
        report_scores(options.evaluation, texts, references, target_language)


def _next_command(options: GenerationOptions, language: str) -> str:
    """Return the command that scores the output, or "" without --output. `language` is the target language."""
    path = options.output.path
    is_scored = options.evaluation.is_wanted or options.requests.score is not None
    if path is None or options.output.format != "text" or is_scored:
        return ""
    target = "LANG" if language == SEVERAL else shlex.quote(language)
    return f"nmt-score {shlex.quote(str(path))} --reference FILE --target-lang {target}"


def _input(options: GenerationOptions, dataset: Dataset | None, translator: Translator) -> Input:
    if dataset is None:
        return TextInput(options.input.path)
    tag = dataset.source_tag
    if tag and options.requests.source_tag:
        raise UserError(f"{dataset.folder} already has the tag {tag}: omit --source-tag")
    return SplitInput(dataset.split(options.input.split), partial(translator.request, source_tag=tag))


def translate(
    translator: Translator,
    source: Input,
    request_files: RequestFiles,
    options: GenerationOptions,
    observers: Sequence[Observer] = (),
) -> StreamStats:
    """Translate a shard of the input, or all of it, and write translations in the order of the input.

    `observers` are called with each translation that is written. The options for input, output, requests, search and
    batches are used. Raises UserError if an output to resume does not fit or the model has no attention for
    --attention-html, and RunError if lines are lost.
    """
    request_files.check_length(source.count)
    output, search, batches = options.output, options.search, options.batches
    if output.attention_html is not None:
        translator.model.alignment_layer(None)  # raises UserError before the search
    if output.format in ALIGNMENT_FORMATS:
        search = replace(search, alignment=True)
    buffer = translator.sizes(batches).buffer
    shard = shard_of(source, options.input.shard, buffer)
    if options.input.interactive or (isinstance(source, TextInput) and source.is_terminal()):
        buffer = 1
    row_format = LOG_PROB if options.requests.score is not None and output.format == "text" else output.format
    with _open_output(output, row_format, search.nbest) as (file, done, last):
        stats = StreamStats(done)
        repeated = done - len(last)  # the last lines are translated again, for a comparison
        end = len(source.split) if isinstance(source, SplitInput) else shard.stop
        with _progress(output, None if end is None else len(range(end)[shard]), repeated) as advance:
            lines = source.chunks(shard, buffer, stats)
            if options.input.input_format == "tsv":
                lines = tsv_requests(lines, shard.start + 1)
            if isinstance(source, TextInput) and options.markup.markup is None:
                lines = _warning_of_documents(lines, source.name)
            if output.attention_html is not None:
                lines = at_most_a_page(lines)
            requests = request_files.attach(lines, shard)
            if options.markup.markup or options.markup.protect:
                translations = translator.stream_markup(requests, options.markup, search, batches, advance, repeated)
            else:
                translations = translator.stream_chunks(requests, search, batches, advance, repeated, shard.start + 1)
            numbered = enumerate(translations, shard.start + repeated + 1)
            if last:
                again = [rows(row_format, *line, search.nbest) for line in islice(numbered, len(last))]
                check_same(last, again, file.name)
            if output.resume:
                file.truncate()
            for number, translation in numbered:
                stats.add(translation)
                file.write(rows(row_format, number, translation, search.nbest))
                file.flush()
                for observe in observers:
                    observe(translation)
        stats.check()
    return stats


def _warning_of_documents(chunks: Iterator[Sequence[str | Request]], name: str) -> Iterator[Sequence[str | Request]]:
    """Yield the lines unchanged, and log a warning if the first lines look like a document."""
    for number, chunk in enumerate(chunks):
        if number == 0 and (found := guess([line for line in chunk[:50] if isinstance(line, str)])):
            logger.warning("%s looks like %s, but is translated line by line: use %s", name, *found)
        yield chunk


def translate_file(
    translator: Translator, format: str, target_language: str, request_files: RequestFiles, options: GenerationOptions
) -> StreamStats:
    """Translate a document, and write it when it is complete. Each of its segments counts as a line.

    Raises UserError if the document cannot be read.
    """
    from nmtkit.documents import FORMATS, Prepared  # imported late, since lines do not need them
    from nmtkit.documents.document import Options

    markup, path, stats = options.markup, options.input.path, StreamStats(0)
    language = "" if target_language == SEVERAL else target_language
    try:
        content = path.read_bytes() if path else sys.stdin.buffer.read()
        chosen = Options(markup.kept, split_names(markup.columns), split_names(markup.keys), language)
        document = FORMATS[format](content, chosen)
    except OSError as error:
        raise UserError(f"cannot read {path or 'stdin'}: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{path or 'stdin'}: {error}") from None
    prepared = Prepared(document, (*markup.patterns, PLACEHOLDERS))
    batches, results = options.batches.for_documents(), list[Segment]()
    search = replace(options.search, repetition_guard=options.search.repetition_guard is not False)
    requests = map(Request.of, stats.count(prepared.segments))
    with _progress(options.output, len(prepared.segments), 0) as advance:
        chunked = request_files.attach(chunks(requests, translator.sizes(batches).buffer))
        for translation in translator.stream_chunks(chunked, search, batches, advance):
            stats.add(translation)
            results.append(translation.segment)
    stats.check()
    output = options.output.path
    with writing_stdout() if output is None else staged_file(output) as file:
        file.write(document.write(prepared.finished(results)))
        file.flush()
    return stats


@contextmanager
def _progress(output: OutputConfig, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the progress by lines. No progress is shown if translations go to a terminal."""
    if output.path is None and sys.stdout.isatty():
        yield lambda count: None
    else:
        with Progress("translating", total=total, done=done) as progress:
            yield progress.advance


@contextmanager
def _open_output(output: OutputConfig, row_format: str, nbest: int) -> Iterator[tuple[BinaryIO, int, list[bytes]]]:
    """Open the output file. Yield it, the number of input lines that it already has, and the rows of the last ones."""
    if output.path is None:
        with writing_stdout() as file:
            yield file, 0, []
        return
    with resumable_file(output.path, output.resume) as file:
        done, last = find_whole_lines(file, row_format, nbest) if output.resume else (0, [])
        begin = os.fstat(file.fileno()).st_size
        try:
            yield file, done, last
        except BaseException:
            if os.fstat(file.fileno()).st_size not in (0, begin):
                logger.warning("%s contains the translations so far: --resume continues it", file.name)
            raise
