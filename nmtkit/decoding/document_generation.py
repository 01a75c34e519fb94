"""What nmt-generate does with a document, and with lines that have markup or protected text."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from nmtkit.console.log import Progress
from nmtkit.decoding.config import GenerationOptions
from nmtkit.decoding.inputs import TextInput
from nmtkit.decoding.requests import RequestFiles
from nmtkit.decoding.stats import StreamStats
from nmtkit.decoding.translation import Translation
from nmtkit.decoding.translator import Translator
from nmtkit.documents.config import DocumentConfig, listed
from nmtkit.documents.document import Options, plain, with_edges
from nmtkit.documents.formats import translate_document
from nmtkit.errors import UserError
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.outputs import writing_stdout
from nmtkit.text.input_stream import ALL_LINES
from nmtkit.text.markup import KEPT, parse, render
from nmtkit.text.reading import read_bytes
from nmtkit.text.segment import PLACEHOLDERS, Segment, protect

_MAX_DOCUMENT = 1 << 28  # bytes


def translate_with_markup(
    translator: Translator, source: TextInput, request_files: RequestFiles, options: GenerationOptions
) -> StreamStats:
    """Translate a document, or lines that have markup or protected text, into the output.

    Raises UserError if the input is not a document of its format, or if the model cannot align words.
    """
    stats = StreamStats(0)
    given = options.documents
    with Progress("translating", total=None) as progress, _output(options.output.path) as file:

        def observe(translation: Translation) -> None:
            stats.add(translation)
            progress.advance(1)

        translate = partial(
            translator.translate_segments,
            config=options.search,
            batches=options.batches,
            request=request_files.request,
            observe=observe,
        )
        if (format := given.format(source.path)) is not None:
            names = map(listed, (given.ignore_tags, given.columns, given.keys))
            settings = Options(frozenset(next(names)), next(names), next(names), translator.languages[1])
            pattern = PLACEHOLDERS if given.protect is None else re.compile(given.protect)
            try:
                file.write(translate_document(_content(source.path), format, translate, settings, pattern))
            except UserError as error:
                raise UserError(f"{source.name}: {error}") from error
        else:
            at_once = options.input.interactive or source.is_terminal()
            buffer = 1 if at_once else translator.sizes(options.batches).buffer
            for lines in source.chunks(ALL_LINES, buffer, stats):
                segments = [line_segment(str(line), given) for line in lines]
                for segment, result in zip(segments, translate(segments), strict=True):
                    file.write((line_of(with_edges(result, segment), given) + "\n").encode())
                file.flush()
    return stats


def line_segment(line: str, given: DocumentConfig) -> Segment:
    """The segment of a line, with its tags and protected text."""
    kept = KEPT.union(listed(given.ignore_tags))
    segment = Segment((line,)) if given.markup is None else parse(line, given.markup == "html", kept)
    return segment if given.protect is None else protect(segment, re.compile(given.protect))


def line_of(segment: Segment, given: DocumentConfig) -> str:
    """The line of a translated segment."""
    return plain(segment) if given.markup is None else render(segment, given.markup == "html")


@contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    with writing_stdout() if path is None else staged_file(path) as file:
        yield file


def _content(path: Path | None) -> bytes:
    if path is not None:
        return read_bytes(path, _MAX_DOCUMENT)
    return sys.stdin.buffer.read(_MAX_DOCUMENT)
