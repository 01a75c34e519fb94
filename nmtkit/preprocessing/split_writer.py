"""Writes the files of a split: one token file for each side, or shards of a limited size."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import HEADER, OFFSET, TokenFileWriter, token_type
from nmtkit.data.description import ShardSummary, dropped_path, split_stem
from nmtkit.errors import UserError
from nmtkit.preprocessing.encoded import EncodedBlock, EncodedSplit

_LINE = np.dtype("<u8")
MAX_SHARDS = 10_000  # limited by dataset.json and the number of open files


class SplitWriter:
    """Writes the blocks of a split in order, and counts them in `split`.

    `sizes` are the sizes of the vocabularies. With `shard_size`, no token file or index is larger than this number of
    bytes, and both sides of a shard contain the same sentence pairs. `shard_done` is called after each complete shard.
    The writer continues after the shards listed in `split`, and appends to the list of dropped lines.
    """

    def __init__(
        self,
        folder: Path,
        split: EncodedSplit,
        sides: tuple[str, str],
        sizes: tuple[int, int],
        shard_size: int | None,
        shard_done: Callable[[], None],
    ) -> None:
        self._folder, self._split, self._shard_size, self._shard_done = folder, split, shard_size, shard_done
        self._dropped_path = dropped_path(folder, split.name)
        self._sides = list(zip(sides, sizes, strict=True))
        limit = shard_size or sys.maxsize
        self._max_tokens = [limit // token_type(size).itemsize for size in sizes]
        self._max_pairs = (limit - HEADER.size) // OFFSET.itemsize - 1
        self._stored = sum(shard.sentences for shard in split.shards)  # sentence pairs in complete shards
        self._files = ExitStack()
        self._writers: list[TokenFileWriter] = []  # for the current shard

    def __enter__(self) -> "SplitWriter":
        self._dropped = self._dropped_path.open("ab")
        return self

    def __exit__(self, *raised: Any) -> None:
        with self._dropped:
            if raised[0] is not None:
                self._files.__exit__(*raised)
                return
            if not self._dropped.tell():
                self._dropped_path.unlink()  # before the progress is saved, since a resumed run does nothing more
            if self._writers:
                self._end_shard()

    def write(self, block: EncodedBlock) -> None:
        """Append a block, except pairs at its beginning that complete shards already contain."""
        bounds = [np.append(0, np.cumsum(side.lengths)) for side in block.sides]
        pairs = len(bounds[0]) - 1
        begin = max(0, self._stored - self._split.kept)
        while begin < pairs:
            if not self._writers:
                self._begin_shard()
            end = self._fitting(bounds, begin)
            for writer, side, bound in zip(self._writers, block.sides, bounds, strict=True):
                writer.write(side.tokens[bound[begin] : bound[end]], side.lengths[begin:end])
            begin = end
            if begin < pairs:
                self._end_shard()
        self._dropped.write((np.flatnonzero(block.marks) + self._split.lines).astype(_LINE).data)
        self._split.add(block)

    def _fitting(self, bounds: list[NDArray[np.int64]], begin: int) -> int:
        """Find the end of the sentence pairs from `begin` on that fit into the shard, given token offsets `bounds`."""
        end = min(len(bounds[0]) - 1, begin + self._max_pairs - self._writers[0].sentences)
        for writer, bound, most in zip(self._writers, bounds, self._max_tokens, strict=True):
            limit = bound[begin] + most - writer.tokens
            end = min(end, int(np.searchsorted(bound, limit, side="right")) - 1)
        if end <= begin and not self._writers[0].sentences:
            raise UserError(f"--shard-size {self._shard_size}: a sentence pair does not fit: give a larger size")
        return max(begin, end)

    def _begin_shard(self) -> None:
        number = None if self._shard_size is None else len(self._split.shards)
        if number == MAX_SHARDS:
            raise UserError(f"--shard-size {self._shard_size}: more than {MAX_SHARDS} shards: give a larger size")
        for side, size in self._sides:
            writer = TokenFileWriter(split_stem(self._folder, self._split.name, side, number), size)
            self._writers.append(self._files.enter_context(writer))

    def _end_shard(self) -> None:
        self._files.close()
        if self._shard_size is not None:
            tokens = {side: writer.tokens for (side, _), writer in zip(self._sides, self._writers, strict=True)}
            self._split.shards.append(ShardSummary(self._writers[0].sentences, tokens))
            self._dropped.flush()
            self._shard_done()
        self._writers.clear()
