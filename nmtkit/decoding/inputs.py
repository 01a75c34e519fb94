"""The input of a generation: a file, stdin, or a split of a dataset."""

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nmtkit.checkpoint import Checkpoint
from nmtkit.data.corpus import Dataset, Split
from nmtkit.data.sentences import Sentences
from nmtkit.decoding.requests import Request
from nmtkit.decoding.stats import StreamStats
from nmtkit.errors import UserError
from nmtkit.text.input_stream import ALL_LINES, Shard, chunks, chunks_as_they_come, reads_terminal
from nmtkit.text.languages import includes
from nmtkit.text.reading import is_regular_file, read_raw_lines, read_raw_stdin
from nmtkit.text.tokenizer import Tokenizer, decode_reference


@dataclass(frozen=True)
class TextInput:
    """The lines of a file, or of stdin if there is no path."""

    path: Path | None = None

    @property
    def name(self) -> str:
        """The name of the input in messages."""
        return str(self.path or "stdin")

    def count(self) -> int | None:
        """Count the lines; None if this is impossible before the translation, because a pipe can be read only once."""
        if not self._is_regular_file():
            return None
        if self.path is not None:
            return sum(1 for _ in read_raw_lines(self.path))
        begin = os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR)
        lines = sum(1 for _ in read_raw_stdin())
        os.lseek(sys.stdin.fileno(), begin, os.SEEK_SET)
        return lines

    def chunks(self, shard: slice, buffer: int, stats: StreamStats) -> Iterator[Sequence[str | Request]]:
        """Yield the lines of a shard in chunks of at most `buffer` lines, and count them in `stats`.

        If the source can pause, a chunk contains the lines that have arrived.
        """
        take = chunks if self._is_regular_file() else chunks_as_they_come
        lines = read_raw_stdin() if self.path is None else read_raw_lines(self.path)
        yield from map(stats.decode, take(islice(lines, shard.start, shard.stop), buffer))

    def is_terminal(self) -> bool:
        """Return whether the input is a terminal; if so, log how to end a line and the input."""
        return self.path is None and reads_terminal("translate a line")

    def _is_regular_file(self) -> bool:
        if self.path is not None:
            return is_regular_file(self.path)
        return stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)


@dataclass(frozen=True)
class SplitInput:
    """The source side of a split of a dataset. `request` converts the ids of a sentence, without EOS, to a request."""

    split: Split
    request: Callable[[Sequence[int]], Request]

    @property
    def name(self) -> str:
        return self.split.name

    def count(self) -> int:
        return len(self.split)

    def chunks(self, shard: slice, buffer: int, stats: StreamStats) -> Iterator[Sequence[str | Request]]:
        yield from chunks(map(self.request, stats.count(_without_eos(self.split.source, shard))), buffer)

    def references(self, target: Tokenizer) -> list[str]:
        """Return the target side of the split as text."""
        return [decode_reference(target, ids) for ids in _without_eos(self.split.target, ALL_LINES)]


Input = TextInput | SplitInput


def _without_eos(sentences: Sentences, shard: slice) -> Iterator[list[int]]:
    for number in range(len(sentences))[shard]:
        yield sentences[number][:-1].tolist()


def open_dataset(folder: Path, checkpoint: Checkpoint, path: Path, verify: bool = False) -> Dataset:
    """Open the dataset in `folder` for translation with a checkpoint that was loaded from `path`.

    `verify` checks the checksums of large datasets too. Raises UserError if the dataset is damaged, or its languages or
    vocabularies differ from those of the checkpoint.
    """
    dataset = Dataset.open(folder, verify)
    if not includes(checkpoint.languages, dataset.languages):
        its, own = ("-".join(one.languages) for one in (dataset, checkpoint))
        raise UserError(f"{folder} is {its}, but {path} translates {own}: use a dataset of that direction")
    if dataset.source.vocab != checkpoint.source.vocab or dataset.target.vocab != checkpoint.target.vocab:
        raise UserError(
            f"{folder} and {path} have different vocabularies: use the dataset that the model was trained on, or raw "
            "text with --input"
        )
    return dataset


def shard_of(source: Input, shard: str | None, buffer: int) -> slice:
    """Return the slice of lines of a shard such as "2/8"; all lines for None. See `Shard.of` for `buffer`, in lines.

    Raises UserError if the shard is malformed, or the input is a pipe.
    """
    if shard is None:
        return ALL_LINES
    part = Shard.parse(shard)
    lines = source.count()
    if lines is None:
        raise UserError("--shard cannot count the lines of a pipe: use --input FILE")
    return part.of(lines, buffer)
