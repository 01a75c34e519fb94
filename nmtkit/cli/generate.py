"""nmt-generate: text to translations."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from nmtkit.atomic_io import check_writable, resumable_file, staged_file
from nmtkit.cli.command import abandon, command
from nmtkit.cli.config_file import config_file_in_use
from nmtkit.cli.options import ConfigOption, PathName, given, options, reads_terminal, refuse_idle
from nmtkit.data.config import DatasetConfig
from nmtkit.decoding.config import (
    EngineConfig,
    EvaluationConfig,
    InputConfig,
    OutputConfig,
    RequestConfig,
    SearchConfig,
    StreamConfig,
)
from nmtkit.decoding.formats import keep_whole_lines, rows, translated_otherwise
from nmtkit.decoding.input_stream import WHOLE, Shard, chunks, chunks_as_they_come
from nmtkit.decoding.requests import Companions, Request
from nmtkit.decoding.stats import StreamStats
from nmtkit.errors import RunError, UserError
from nmtkit.log import LogConfig, Progress, configure, logger, say
from nmtkit.model.config import WeightsConfig
from nmtkit.serving.config import ServeConfig
from nmtkit.text import check_readable, is_ordinary, read_lines, read_raw_lines, read_raw_stdin
from nmtkit.wording import counted

if TYPE_CHECKING:
    from nmtkit.checkpoint import Checkpoint
    from nmtkit.data.binary import TokenFile
    from nmtkit.data.corpus import Split
    from nmtkit.decoding.translation import Translation
    from nmtkit.decoding.translator import Translator


DASH = Path("-")  # stdin or stdout, as with other tools


@command("nmt-generate")
@click.argument("dataset", required=False, type=PathName())
@click.option(
    "--checkpoint",
    cls=ConfigOption,
    heading="Model",
    required=True,
    multiple=True,
    type=PathName(),
    metavar="FILE",
    help="A checkpoint of nmt-train or nmt-average; it holds the vocabulary and the tokenizer too. "
    "Given several times: an ensemble, whose probabilities are averaged.",
)
@options(
    choice=WeightsConfig,
    source=InputConfig,
    reading=DatasetConfig,
    asked=RequestConfig,
    result=OutputConfig,
    search=SearchConfig,
    batches=StreamConfig,
    evaluation=EvaluationConfig,
    server=ServeConfig,
    engine=EngineConfig,
    log=LogConfig,
)
def main(
    dataset: Path | None,
    checkpoint: tuple[Path, ...],
    choice: WeightsConfig,
    source: InputConfig,
    reading: DatasetConfig,
    asked: RequestConfig,
    result: OutputConfig,
    search: SearchConfig,
    batches: StreamConfig,
    evaluation: EvaluationConfig,
    server: ServeConfig,
    engine: EngineConfig,
    log: LogConfig,
) -> None:
    """Translate raw text: stdin, a file, or a split of DATASET.

    \b
    nmt-generate --checkpoint averaged.pt < input.en > output.de
    nmt-generate --checkpoint averaged.pt --input input.en.gz --output output.de
    nmt-generate --checkpoint averaged.pt data-bin/en-de --split test --sacrebleu
    nmt-generate --checkpoint averaged.pt --serve 8080

    There is one line of output for each line of input, in order. A line ends at a line feed and nowhere else; a
    carriage return before it is white space to the tokenizer and does not come back. Blank lines stay blank. Bytes
    that are not UTF-8 are replaced and counted.
    """
    configure(log)
    source, result = _standard_streams(source, result)
    _check_usage(dataset, source, result, evaluation, models=len(checkpoint))
    if server.serve is None:
        refuse_idle(server.to_dict(), "without --serve")
    else:
        _check_serving(dataset, search, asked)
    if result.format == "pharaoh":
        search = replace(search, alignment=True)
    _check_search(search, asked, result, server)
    beside = (asked.prefix, asked.constraints, asked.glossary, asked.score)
    _check_files(result, (*checkpoint, source.input, *beside, evaluation.reference, config_file_in_use()), dataset)
    companions = Companions(asked)
    layout = "log_prob" if asked.score is not None and result.format == "text" else result.format

    from nmtkit.checkpoint import load_checkpoint
    from nmtkit.decoding.attention_page import at_most_a_page, attention_page
    from nmtkit.decoding.translator import Translator

    loaded = [load_checkpoint(path) for path in checkpoint]
    translator = Translator.of(loaded, engine, choice, checkpoint)
    if server.serve is not None:
        _serve(translator, companions, search, batches, server, loaded[0], with_workers=engine.workers > 1)
        return
    split = None if dataset is None else _open_split(dataset, source.split, reading, checkpoint[0], loaded[0])
    references = _references(evaluation, split, source.input, translator)
    companions.check_length(partial(_countable_lines, split, source.input))
    share = _share(source, split, batches.buffer)
    if source.interactive or (split is None and source.input is None and reads_terminal()):
        batches = replace(batches, buffer=1)

    start = time.monotonic()
    with _destination(result, layout, search.nbest, share.start) as (file, done, last):
        stats = StreamStats(done)
        passed = done - len(last)  # the last lines that are there are translated again, to be compared
        known = share.stop if split is None else len(split)
        with _progress(result, None if known is None else len(range(known)[share]), passed) as advance:
            if split is None:
                lines: Iterable[Sequence[str | Request]] = _read(source.input, share, batches.buffer, stats)
            else:
                sentences = stats.count(_without_eos(split.source, share))
                lines = chunks(map(translator.request, sentences), batches.buffer)
            if result.attention_html is not None:
                lines = at_most_a_page(lines)
            translations = translator.stream_chunks(companions.attach(lines, share), search, batches, advance, passed)
            if last:
                _compare(last, translations, layout, search.nbest, share.start + passed, file.name)
            if result.attention_html is not None:
                translations, shown = tee(translations)
            best = _write(translations, file, layout, search.nbest, stats, share.start, keep=references is not None)
        stats.check()
    read = split.name if split is not None else str(source.input or "stdin")
    stats.report(time.monotonic() - start, read, loaded[0].source_language, translator.model)
    if result.attention_html is not None:
        attentions = map(translator.attention_of, (own for own in shown if own.candidates[0].tokens))
        languages = (loaded[0].source_language, loaded[0].target_language)
        _write_page(result.attention_html, attention_page(attentions, languages))
    if references is not None:
        _evaluate(best, references, evaluation, loaded[0].target_language)


def _standard_streams(source: InputConfig, result: OutputConfig) -> tuple[InputConfig, OutputConfig]:
    """`-` in the place of --input and --output is as if they were not given."""
    if source.input == DASH:
        source = replace(source, input=None)
    if result.output == DASH:
        result = replace(result, output=None)
    return source, result


def _check_usage(
    dataset: Path | None, source: InputConfig, result: OutputConfig, evaluation: EvaluationConfig, models: int
) -> None:
    """Refuse options that contradict each other, before the model is loaded."""
    scores = evaluation.sacrebleu or evaluation.tokenized_bleu
    if dataset is not None and source.input is not None:
        raise UserError(f"both {dataset} and --input {source.input} are given: there can be one input only")
    if dataset is not None and dataset.is_file():
        raise UserError(f"{dataset} is a file and no dataset: text to translate is given as --input {dataset}")
    if dataset is None and given("split"):
        raise UserError("--split names a part of a dataset, but no DATASET is given")
    if evaluation.reference is not None and not scores:
        raise UserError("--reference serves --sacrebleu and --tokenized-bleu: give one of them")
    if scores and dataset is None and evaluation.reference is None:
        raise UserError("--sacrebleu and --tokenized-bleu need --reference FILE, or a DATASET as input")
    if result.resume and result.output is None:
        raise UserError("--resume goes on with a file, but no --output FILE is given")
    if source.shard is not None and scores:
        raise UserError("--shard sees a part of the text: score the parts when they are joined")
    if result.attention_html is not None and models > 1:
        raise UserError("--attention-html shows one model: give one --checkpoint (nmt-average makes one of several)")
    if result.attention_html == DASH and result.output is None:
        raise UserError("--attention-html -: the translations go to stdout too: give the page a file, or --output FILE")
    if result.resume and result.attention_html is not None:
        raise UserError("--resume does not see the lines that were translated before, which --attention-html shows")
    if result.resume and scores:
        raise UserError("--resume does not see the lines that were translated before: score the finished file")


def _check_files(result: OutputConfig, read: Iterable[Path | None], dataset: Path | None) -> None:
    """Refuse results that cannot be written, or would replace each other, what is `read` or a file of the dataset; and
    files to read that cannot be read."""
    sources = [path for path in read if path is not None]
    in_dataset = list(dataset.iterdir()) if dataset is not None and dataset.is_dir() else []
    for path in (result.output, result.attention_html):
        if path is not None and path != DASH:
            check_writable(path, [*sources, *in_dataset])
    output, page = (path and os.path.realpath(path) for path in (result.output, result.attention_html))
    if page is not None and page == output:
        raise UserError(f"--output and --attention-html are one file, {result.output}: give each its own")
    for path in sources:
        check_readable(path)


def _check_serving(dataset: Path | None, search: SearchConfig, asked: RequestConfig) -> None:
    """Refuse options that are about a text, or that each request has for itself."""
    if dataset is not None:
        raise UserError(f"--serve takes what is sent to it, and no DATASET: {dataset}")
    about_text = [name for config in (InputConfig, OutputConfig, EvaluationConfig) for name in config().to_dict()]
    refuse_idle((*about_text, "prefix", "constraints", "score", "buffer"), "with --serve")
    refuse_idle(("nbest", "alignment"), "with --serve: each request asks for itself")


def _check_search(search: SearchConfig, asked: RequestConfig, result: OutputConfig, server: ServeConfig) -> None:
    """Refuse options of a search that is not the one asked for."""
    if asked.score is not None:
        penalty, alignment = {"length_penalty", "length_penalty_form"}, {"alignment", "alignment_layer"}
        refuse_idle(search.to_dict().keys() - penalty - alignment, "with --score, which does not search")
        if result.format == "text":
            refuse_idle(penalty, "with --score and --format text, which are log-probabilities")
    elif search.sampling:
        refuse_idle(("beam", "diversity"), "with --sampling, which draws --nbest outputs")
    else:
        refuse_idle(("top_k", "top_p", "temperature", "seed"), "without --sampling")
    if (asked.constraints or asked.glossary) and (search.sampling or search.diverse_groups > 1):
        raise UserError("--constraints and --glossary need a beam without --sampling and --diverse-groups")
    if result.format == "text" and server.serve is None:
        refuse_idle(("alignment",), "with --format text: take jsonl, tsv or pharaoh")
    if not search.attends and server.serve is None:
        refuse_idle(("alignment_layer",), "without --alignment")
    if search.diverse_groups == 1:
        refuse_idle(("diversity",), "without --diverse-groups")
    if search.length_penalty_form == "none":
        refuse_idle(("length_penalty",), "with --length-penalty-form none")


def _serve(
    translator: "Translator",
    companions: Companions,
    search: SearchConfig,
    batches: StreamConfig,
    server: ServeConfig,
    checkpoint: "Checkpoint",
    with_workers: bool,
) -> None:
    """Run the server. With workers, no search is stopped early: they would have to load the model again."""
    try:
        from nmtkit.serving.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"--serve: {error.name} is not installed: pip install starlette uvicorn") from error

    def translate(
        lines: Sequence[str], config: SearchConfig, advance: Callable[[int], None]
    ) -> Iterator["Translation"]:
        return translator.stream_chunks(companions.attach([lines]), config, batches, advance)

    languages = (checkpoint.source_language, checkpoint.target_language)
    serve(translate, search, translator.source, languages, server, can_stop=not with_workers)


def _open_split(folder: Path, name: str, reading: DatasetConfig, path: Path, checkpoint: "Checkpoint") -> "Split":
    """A split of a dataset whose languages and vocabularies are those of the checkpoint, which stood at `path`."""
    from nmtkit.data.corpus import Dataset

    dataset = Dataset.open(folder, reading.verify)
    its, own = (f"{one.source_language}-{one.target_language}" for one in (dataset, checkpoint))
    if its != own:
        raise UserError(f"{folder} is {its}, {path} translates {own}: take a dataset of that direction")
    if dataset.source.vocab != checkpoint.source.vocab or dataset.target.vocab != checkpoint.target.vocab:
        raise UserError(
            f"{folder} and {path} have different vocabularies: take the dataset that the model was trained on, "
            "or give raw text with --input"
        )
    return dataset.split(name)


def _countable_lines(split: "Split | None", source: Path | None) -> int | None:
    """The lines of the input, where they can be counted before it is read: a pipe can be read once only."""
    if split is not None:
        return len(split)
    if source is not None:
        return sum(1 for _ in read_raw_lines(source)) if is_ordinary(source) else None
    if not _stdin_is_file():
        return None
    begin = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
    lines = sum(1 for _ in read_raw_stdin())
    os.lseek(sys.stdin.fileno(), begin, os.SEEK_SET)
    return lines


def _stdin_is_file() -> bool:
    return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)


def _share(source: InputConfig, split: "Split | None", buffer: int) -> slice:
    """Which lines of the input are to be translated."""
    if source.shard is None:
        return WHOLE
    shard = Shard.parse(source.shard)
    lines = _countable_lines(split, source.input)
    if lines is None:
        raise UserError("--shard counts the lines of its input first, which a pipe does not let: give --input FILE")
    return shard.of(lines, buffer)


def _without_eos(sentences: "TokenFile", share: slice = WHOLE) -> Iterator[list[int]]:
    for number in range(len(sentences))[share]:
        yield sentences[number][:-1].tolist()


def _references(
    evaluation: EvaluationConfig, split: "Split | None", source: Path | None, translator: "Translator"
) -> list[str] | None:
    """The text to compare with, from the file or from the split; None where no score is asked for.

    Its lines are compared with those of the input now, where these can be counted, and not after the translation.
    """
    if evaluation.reference is not None:
        references = list(read_lines(evaluation.reference))
        lines = _countable_lines(split, source)
        if lines is not None:
            _check_reference(evaluation, len(references), lines)
        return references
    if split is not None and (evaluation.sacrebleu or evaluation.tokenized_bleu):
        return [translator.target.decode(ids) for ids in _without_eos(split.target)]
    return None


def _check_reference(evaluation: EvaluationConfig, references: int, lines: int) -> None:
    if references != lines:
        raise UserError(f"--reference {evaluation.reference} has {counted(references, 'line')}, the input has {lines}")


@contextmanager
def _progress(result: OutputConfig, total: int | None, done: int) -> Iterator[Callable[[int], None]]:
    """What to call with the number of lines that were translated; shows nothing between translations on a terminal."""
    if result.output is None and sys.stdout.isatty():
        yield lambda count: None
    else:
        with Progress("translating", total=total, done=done) as progress:
            yield progress.advance


def _read(path: Path | None, share: slice, buffer: int, stats: StreamStats) -> Iterator[list[str]]:
    """A share of the lines of a file, or of stdin, in chunks: full ones of an ordinary file, what is there of what may
    pause."""
    take = chunks if (_stdin_is_file() if path is None else is_ordinary(path)) else chunks_as_they_come
    lines = read_raw_stdin() if path is None else read_raw_lines(path)
    yield from map(stats.decode, take(islice(lines, share.start, share.stop), buffer))


def _compare(
    last: list[bytes], translations: Iterator["Translation"], layout: str, nbest: int, before: int, name: str
) -> None:
    """Refuse to go on with an output whose last lines, behind `before` others, are translated otherwise now."""
    numbered = enumerate(islice(translations, len(last)), before + 1)
    again = [rows(layout, line, translation, nbest) for line, translation in numbered]
    if len(again) == len(last) and translated_otherwise(last, again):  # a shorter input is told of at its end
        raise UserError(
            f"--resume: the last lines of {name} are translated otherwise now: give the checkpoint, the options and "
            "the input that it was begun with, or remove it"
        )


def _write(
    translations: Iterable["Translation"],
    file: BinaryIO,
    layout: str,
    nbest: int,
    stats: StreamStats,
    before: int,
    keep: bool,
) -> list[str]:
    """Write each translation as soon as it is there; returns the best texts if they are to be kept for scoring.

    Lines are numbered from 1 on, and `before` stand before the first.
    """
    best = []
    for line, translation in enumerate(translations, before + stats.done + 1):
        stats.add(translation)
        file.write(rows(layout, line, translation, nbest))
        file.flush()
        if keep:
            best.append(translation.text)
    return best


@contextmanager
def _destination(
    result: OutputConfig, layout: str, nbest: int, before: int
) -> Iterator[tuple[BinaryIO, int, list[bytes]]]:
    """What to write to, the number of input lines whose translations it holds already, and the last rows."""
    if result.output is None:
        with _stdout() as file:
            yield file, 0, []
        return
    with resumable_file(result.output, result.resume) as file:
        done, last = keep_whole_lines(file, layout, nbest, before) if result.resume else (0, [])
        begin = os.fstat(file.fileno()).st_size
        try:
            yield file, done, last
        except BaseException:
            if os.fstat(file.fileno()).st_size > begin:
                logger.warning("%s keeps what has been translated: --resume goes on with it", file.name)
            raise


@contextmanager
def _stdout() -> Iterator[BinaryIO]:
    try:
        yield sys.stdout.buffer
    except BrokenPipeError:
        raise  # the command ends quietly
    except OSError as error:
        abandon(sys.stdout)
        raise RunError(f"cannot write to stdout: {error.strerror or error}") from error


def _write_page(path: Path, page: bytes) -> None:
    with _stdout() if path == DASH else staged_file(path) as file:
        file.write(page)
        file.flush()


def _evaluate(best: list[str], references: list[str], evaluation: EvaluationConfig, language: str) -> None:
    """Print the scores that were asked for, on stderr."""
    from nmtkit.decoding.scoring import bleu, chrf, tokenized_bleu, warn_of_subwords

    _check_reference(evaluation, len(references), len(best))
    if not best:
        logger.warning("the input has no lines: there is nothing to score")
        return
    scores = []
    if evaluation.sacrebleu:
        warn_of_subwords(best, references)
        scores += [bleu(best, references, language), chrf(best, references)]
    if evaluation.tokenized_bleu:
        scores.append(tokenized_bleu(best, references))
    for score in scores:
        say(score.text)  # asked for, so --quiet does not apply
