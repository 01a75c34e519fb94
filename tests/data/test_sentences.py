"""The sentences of one side in several token files."""

import resource
from pathlib import Path

import numpy as np

from nmtkit.data.binary import TokenFileWriter
from nmtkit.data.sentences import Sentences
from nmtkit.text.vocabulary import EOS

COUNT = 50


def stored(folder: Path, *ends: int) -> Sentences:
    """The same random sentences, in token files that end at these numbers of sentences."""
    random = np.random.default_rng(1)
    sentences = [np.append(random.integers(4, 100, random.integers(0, 9)), EOS) for _ in range(COUNT)]
    stems = [folder / f"{len(ends)}.{end}" for end in ends]
    for stem, begin, end in zip(stems, (0, *ends), ends, strict=False):
        with TokenFileWriter(stem, 100) as writer:
            part = sentences[begin:end]
            writer.write(np.concatenate(part).astype("<u2"), np.array([len(each) for each in part], np.int32))
    return Sentences(stems, 100)


def test_sentences_in_several_files_are_read_as_from_one(tmp_path: Path) -> None:
    one, many = stored(tmp_path, COUNT), stored(tmp_path, 1, 7, 8, 30, COUNT)
    assert (len(many), many.tokens) == (len(one), one.tokens)
    random = np.random.default_rng(2)
    for size in (0, 1, 5, 200):
        numbers = random.integers(0, COUNT, size)
        assert many.lengths[numbers].tolist() == one.lengths[numbers].tolist()
        assert many.lengths[numbers].dtype == np.int32
        for ours, theirs in zip(many.gather(numbers), one.gather(numbers), strict=True):
            assert (ours.tolist(), ours.dtype) == (theirs.tolist(), theirs.dtype)
    assert all(many[number].tolist() == one[number].tolist() for number in range(COUNT))


def test_every_slice_of_the_lengths_is_that_of_one_file(tmp_path: Path) -> None:
    one, many = stored(tmp_path, COUNT), stored(tmp_path, 1, 7, 8, 30, COUNT)
    for first in range(COUNT + 2):
        for last in range(COUNT + 2):
            assert many.lengths[first:last].tolist() == one.lengths[first:last].tolist()
            assert many.lengths[first:last].dtype == np.int32


def test_more_shards_than_the_soft_limit_of_open_files_are_read(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        many = stored(tmp_path, *range(1, COUNT + 1))
        assert many.gather(np.arange(COUNT))[1].tolist() == many.lengths[:].tolist()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
