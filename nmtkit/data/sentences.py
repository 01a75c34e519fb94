"""Reads the sentences of one side of a split from one or more token files (shards)."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Indices, TokenFile, Tokens, token_type


class SentenceLengths:
    """Looks up lengths of sentences, in tokens with EOS, in token files. Raises UserError for damaged offsets."""

    def __init__(self, shards: Sequence[TokenFile]) -> None:
        self._shards = shards
        self._begins = np.cumsum([0, *map(len, shards)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, sentences: Indices | slice, /) -> NDArray[np.int32]:
        if isinstance(sentences, slice):
            first, last, _ = sentences.indices(len(self))
            return np.concatenate([np.empty(0, np.int32), *self._parts(first, last)])
        lengths = np.empty(len(sentences), np.int32)
        for shard, places, numbers in self.by_shard(sentences):
            lengths[places] = shard.lengths(numbers)
        return lengths

    def _parts(self, first: int, last: int) -> Iterator[NDArray[np.int32]]:
        for shard, begin in zip(self._shards, self._begins.tolist(), strict=False):
            if first < begin + len(shard) and begin < last:
                yield shard.lengths(slice(max(0, first - begin), last - begin))

    def by_shard(self, sentences: Indices) -> Iterator[tuple[TokenFile, Indices, Indices]]:
        """Yield each shard that contains any of these sentences, with their places in `sentences` and in the shard."""
        shards = np.searchsorted(self._begins, sentences, side="right") - 1
        order = np.argsort(shards, kind="stable")
        found, firsts = np.unique(shards[order], return_index=True)
        for shard, places in zip(found.tolist(), np.split(order, firsts[1:]), strict=False):
            yield self._shards[shard], places, sentences[places] - self._begins[shard]


class Sentences:
    """Reads the sentences of one side: `sentences[i]` is the array of ids of sentence i, including EOS.

    `stems` are the paths of one or more token files, without suffixes. Raises UserError for missing or damaged files.
    """

    def __init__(self, stems: Sequence[Path], vocabulary_size: int) -> None:
        if len(stems) > 1:
            _raise_limit_of_open_files()
        self.shards = [TokenFile(stem, vocabulary_size) for stem in stems]
        self.tokens = sum(shard.tokens for shard in self.shards)
        self.lengths = SentenceLengths(self.shards)
        self._dtype = token_type(vocabulary_size)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Tokens:
        return self.gather(np.array([number]))[0]

    def gather(self, sentences: Indices) -> tuple[Tokens, NDArray[np.int32]]:
        """Read several sentences (n,), and return their concatenated tokens (T,) and lengths (n,)."""
        if len(self.shards) == 1:
            return self.shards[0].gather(sentences)
        parts = [(places, *shard.gather(numbers)) for shard, places, numbers in self.lengths.by_shard(sentences)]
        lengths = np.empty(len(sentences), np.int32)
        for places, _, own in parts:
            lengths[places] = own
        begins = np.cumsum(lengths) - lengths
        tokens: Tokens = np.empty(int(lengths.sum()), self._dtype)
        for places, part, own in parts:
            shifts = begins[places] - (np.cumsum(own) - own)  # from positions in the part to the result
            tokens[np.arange(len(part)) + np.repeat(shifts, own)] = part
        return tokens, lengths


def _raise_limit_of_open_files() -> None:
    """Raise this process's soft limit of open files to its hard limit, because each mapped shard needs two files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS rejects some hard limits
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
