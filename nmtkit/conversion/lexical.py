"""Learns and writes shortlists: lexical translation probabilities by IBM Model 1 (Brown et al. 1993, §4.2).

Letters: P distinct pairs of a source and a target piece that occur in the same sentence pair.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmtkit.checkpoint import Checkpoint
from nmtkit.console.log import Progress, logger
from nmtkit.conversion.config import ExportConfig
from nmtkit.data.binary import Indices
from nmtkit.data.corpus import Dataset, Split
from nmtkit.decoding.inputs import open_dataset
from nmtkit.errors import UserError
from nmtkit.inference.shortlist import MAGIC, Shortlist, fingerprint
from nmtkit.storage.atomic import staged_file
from nmtkit.storage.files import begins_with
from nmtkit.text.vocabulary import EOS, SPECIALS
from nmtkit.wording import counted

MAX_SENTENCES = 200_000  #: aligned sentences, evenly spaced in the training split; more hardly change the lists
_ITERATIONS = 5
_CELLS = 1 << 20  # pairs of source and target tokens that are aligned together, about 100 MB
_MOST_CELLS = 1 << 22  # for one sentence pair; longer ones are skipped
Ints = NDArray[np.int64]


def export_shortlist(checkpoint: Checkpoint, path: Path, output: Path, config: ExportConfig) -> None:
    """Write the shortlist of the checkpoint that was loaded from `path`.

    Raises UserError if the output exists and is not a shortlist, or if the dataset of `config` does not fit the
    checkpoint. Raises RunError if writing fails.
    """
    assert config.dataset is not None
    if output.exists() and not (output.is_file() and begins_with(output, MAGIC)):
        raise UserError(f"{output} exists and is not a shortlist: use a different --output, or remove it")
    dataset = open_dataset(config.dataset, checkpoint, path)
    shortlist = learn_shortlist(dataset, config.translations, config.frequent)
    with staged_file(output) as file:
        shortlist.write(file)


def learn_shortlist(dataset: Dataset, translations: int, frequent: int) -> Shortlist:
    """Learn the `translations` most probable target pieces of each source piece and the `frequent` most frequent ones.

    With a joined vocabulary, each piece is also a translation of itself. Raises UserError without a training split.
    """
    chunks = _divide(dataset.split("train"))
    with Progress("aligning", (_ITERATIONS + 1) * sum(map(len, chunks)), "sentences") as progress:
        model = _Model1(dataset.split("train"), len(dataset.target.vocab), chunks, progress)
        for _ in range(_ITERATIONS):
            model.improve()
    size = len(dataset.source.vocab)
    pieces, ids = model.best(translations)
    if dataset.joined:
        same = np.arange(len(SPECIALS), size)
        pieces, ids = np.concatenate([pieces, same]), np.concatenate([ids, same])
    keys = np.unique(pieces * model.width + ids)
    offsets = np.searchsorted(keys, np.arange(size + 1) * model.width)
    vocabularies = fingerprint(dataset.source.vocab, dataset.target.vocab)
    own = (keys % model.width).astype(np.int32)
    return Shortlist(offsets, own, model.most_frequent(frequent), model.width, vocabularies)


class _Model1:
    """Estimates P(target piece | source piece) by expectation maximization. The source's EOS is the empty word."""

    def __init__(self, split: Split, width: int, chunks: Sequence[Indices], progress: Progress) -> None:
        """`width` is the size of the target vocabulary. The sentences of each chunk are aligned together."""
        self.width, self._split, self._chunks, self._progress = width, split, chunks, progress
        # (P,) source · width + target, ascending
        self._pairs = np.unique(np.concatenate([np.unique(keys) for keys, _ in self._aligned()]))
        self._probabilities = np.ones(len(self._pairs), np.float32)

    def improve(self) -> None:
        """Run one iteration of expectation maximization."""
        counts = np.zeros(len(self._pairs))
        for keys, starts in self._aligned():
            different, inverse = np.unique(keys, return_inverse=True)  # the search is several times faster when sorted
            index = np.searchsorted(self._pairs, different)
            shares = self._probabilities[index][inverse]
            sizes = np.diff(starts, append=len(keys))
            counts[index] += np.bincount(inverse, shares / np.repeat(np.add.reduceat(shares, starts), sizes))
        pieces = self._pairs // self.width
        self._probabilities = (counts / np.bincount(pieces, counts)[pieces]).astype(np.float32)

    def best(self, count: int) -> tuple[Ints, Ints]:
        """Return the `count` best translations of each source piece as source ids (n,) and target ids (n,)."""
        pieces = self._pairs // self.width
        order = np.lexsort((-self._probabilities, pieces))
        rank = np.arange(len(order)) - np.searchsorted(pieces, pieces)  # `pieces` is ascending, like pieces[order]
        chosen = order[rank < count]
        return pieces[chosen], self._pairs[chosen] % self.width

    def most_frequent(self, count: int) -> NDArray[np.int32]:
        """Return the ids of the `count` most frequent target pieces (count,), ascending."""
        frequencies = np.zeros(self.width, np.int64)
        for sentences in self._chunks:
            tokens, _ = self._split.target.gather(sentences)
            frequencies += np.bincount(tokens, minlength=self.width)
        frequencies[: len(SPECIALS)] = 0
        best = np.argsort(-frequencies, kind="stable")[:count]
        return np.sort(best[frequencies[best] > 0]).astype(np.int32)

    def _aligned(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield pairs of each target token with all source tokens of its sentence, a few sentences at a time, encoded
        as in `_pairs`, and the indices where the pairs of each target token begin."""
        for sentences in self._chunks:
            source, lengths = self._split.source.gather(sentences)
            target, target_lengths = self._split.target.gather(sentences)
            sentence = np.repeat(np.arange(len(sentences)), target_lengths)[target != EOS]
            target = target[target != EOS].astype(np.int64)
            sizes = lengths[sentence].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            first = (np.cumsum(lengths) - lengths)[sentence]  # source token of each target token's sentence
            positions = np.arange(sizes.sum()) + np.repeat(first - starts, sizes)
            yield source[positions].astype(np.int64) * self.width + np.repeat(target, sizes), starts
            self._progress.advance(len(sentences))


def _divide(split: Split) -> list[Indices]:
    """Divide the sentence pairs to align into chunks of about `_CELLS` pairs of tokens."""
    count = min(len(split), MAX_SENTENCES)
    sentences = np.arange(count) * len(split) // count
    cells = split.source.lengths[sentences].astype(np.int64) * split.target.lengths[sentences]
    if left_out := int(np.count_nonzero(cells > _MOST_CELLS)):
        logger.warning("%s too long to align: skipped", counted(left_out, "sentence pair"))
    sentences, cells = sentences[cells <= _MOST_CELLS], cells[cells <= _MOST_CELLS]
    chunk = np.cumsum(cells) // _CELLS
    return np.split(sentences, np.flatnonzero(np.diff(chunk)) + 1)
