"""Writes synthetic parallel text of any size, in constant memory.

    python benchmarks/synthetic_text.py /data/text --pairs 100000000 --gzip 2

writes text.xx.gz and text.yy.gz. Word frequencies follow Zipf's law with two exponents, 1 for the most frequent words
and 1.7 for the rest, so new words occur in texts of any size (Ferrer i Cancho and Solé 2001, "Two regimes in the
frequency of words"). Source lengths are a gamma distribution with a mean of 23 words, as in news. A target sentence
consists of the translations of the source words, repeated or omitted to reach its own length.
"""

import gzip
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import click
import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16  # pairs made at once
LONGEST = 200  # words of a source sentence
FREQUENT = 8000  # words of the first regime
EXPONENT = 1.7  # of the second regime
CACHED = 1 << 17  # words whose spelling is kept
LARGEST_RANK = 1 << 48
# the share of the second regime that makes the density continuous
RARE_SHARE = 1 / (1 + (EXPONENT - 1) * math.log(FREQUENT))

Ranks = NDArray[np.int64]


def draw_ranks(count: int, random: np.random.Generator) -> Ranks:
    """Draw the frequency ranks of `count` words, from 1."""
    uniform = random.random(count)
    frequent = np.exp(random.random(count) * math.log(FREQUENT))
    rare = FREQUENT * (1 - uniform / RARE_SHARE).clip(1e-12) ** (-1 / (EXPONENT - 1))
    return np.where(uniform < RARE_SHARE, rare, frequent).clip(1, LARGEST_RANK).astype(np.int64)


def align(source: Ranks, lengths: Ranks, random: np.random.Generator) -> tuple[Ranks, Ranks]:
    """Make the target of concatenated source sentences: the ranks of its words, and the lengths of its sentences."""
    own = np.maximum(1, np.rint(lengths * random.lognormal(0, 0.15, len(lengths)))).astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    places = np.arange(own.sum()) - np.repeat(np.cumsum(own) - own, own)
    return source[np.repeat(begins, own) + places * np.repeat(lengths, own) // np.repeat(own, own)], own


class Speller:
    """Spells the word of each rank in syllables of a language: frequent words are short."""

    def __init__(self, consonants: str, vowels: str) -> None:
        self._syllables = [consonant + vowel for consonant in consonants for vowel in vowels]
        self._words = [self._spell(rank) for rank in range(CACHED)]

    def _spell(self, rank: int) -> bytes:
        word = ""
        while rank:
            rank, syllable = divmod(rank - 1, len(self._syllables))
            word += self._syllables[syllable]
        return word.encode()

    def lines(self, ranks: Ranks, lengths: Ranks) -> bytes:
        """The sentences with these concatenated ranks, one a line."""
        words = [self._words[rank] if rank < CACHED else self._spell(rank) for rank in ranks.tolist()]
        ends = np.cumsum(lengths).tolist()
        sentences = (b" ".join(words[begin:end]) for begin, end in zip([0, *ends], ends, strict=False))
        return b".\n".join([*sentences, b""])


def text_blocks(pairs: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield both sides of `pairs` sentence pairs, in blocks."""
    spellers = Speller("bdfghklmnprstvw", "aeiou"), Speller("bdfgklmnprstvz", "aeioäü")
    for number, begin in enumerate(range(0, pairs, BLOCK)):
        random = np.random.default_rng((seed, number))
        count = min(BLOCK, pairs - begin)
        lengths = random.gamma(2.6, 9, count).clip(1, LONGEST).astype(np.int64)
        source = draw_ranks(int(lengths.sum()), random)
        target, target_lengths = align(source, lengths, random)
        yield spellers[0].lines(source, lengths), spellers[1].lines(target, target_lengths)


def create(path: str, level: int) -> BinaryIO:
    """Create a file, compressed with gzip unless the level is 0."""
    return cast(BinaryIO, gzip.open(f"{path}.gz", "wb", level)) if level else Path(path).open("wb")


@click.command()
@click.argument("prefix")
@click.option("--pairs", default=1_000_000)
@click.option("--seed", default=1)
@click.option("--gzip", "level", type=click.IntRange(0, 9), default=0, help="Compression level; 0 writes plain text.")
def main(prefix: str, pairs: int, seed: int, level: int) -> None:
    """Write PREFIX.xx and PREFIX.yy."""
    with ExitStack() as stack:
        files = [stack.enter_context(create(f"{prefix}.{side}", level)) for side in ("xx", "yy")]
        for block in text_blocks(pairs, seed):
            for file, side in zip(files, block, strict=True):
                file.write(side)


if __name__ == "__main__":
    main()
