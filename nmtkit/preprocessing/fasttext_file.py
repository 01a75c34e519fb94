"""Checks the file of a fastText classifier against its own header.

The package fasttext-predict reads a truncated file without an error, and trusts every number in it. The format is that
of fastText 0.9 (https://github.com/facebookresearch/fastText, `FastText::loadModel`): header, dictionary, and the
matrices of input (a row for each word and n-gram) and output (a row for each label), each dense or quantized.
"""

import math
import mmap
import struct
from pathlib import Path

import numpy as np

from nmtkit.storage.files import map_file

_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_LOSSES = (1, 2, 3, 4)  # hierarchical softmax, negative sampling, softmax, one-vs-all
_WORD, _LABEL = 0, 1  # types of dictionary entries
_MOST_COUNTED = 10**15  # fastText's own limit for the tree of the hierarchical softmax
_LONGEST_NGRAM = 100  # of characters or words; the time to predict grows with its square
_CENTROIDS = 256  # of a quantizer
_LARGEST_WEIGHT = 1e6  # a score multiplies up to four: beyond, it could overflow, which ends the prediction


def check_classifier(path: Path) -> None:
    """Raise ValueError, with the reason, for a file that is not a complete and consistent classifier of text."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ValueError("empty")
        with map_file(file) as content:
            _Reader(content).check()


class _Reader:
    """Reads the numbers of a file in order."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._position = content, 0

    def check(self) -> None:
        magic, version = self._numbers("ii") if len(self._content) >= 8 else (0, 0)
        if magic != _MAGIC or version not in _VERSIONS:
            raise ValueError("not a fastText model")
        dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _, _ = self._numbers("12id")
        if kind != _SUPERVISED or loss not in _LOSSES:
            raise ValueError("a fastText model that does not classify text")
        _require(dim > 0 and buckets >= 0, "sizes in the header")
        _require(word_ngrams <= _LONGEST_NGRAM and shortest <= longest <= _LONGEST_NGRAM, "lengths of n-grams")
        words, labels, pruned = self._check_dictionary()
        _require(buckets > 0 or (word_ngrams <= 1 and longest <= 0), "number of n-grams")  # a hash modulo `buckets`
        is_quantized = self._flag()
        _require(is_quantized or pruned < 0, "dictionary of a dense model")
        self._check_matrix(words + (buckets if pruned < 0 else pruned), dim, is_quantized)
        output_is_quantized = self._flag()
        self._check_matrix(labels, dim, is_quantized and output_is_quantized)
        if self._position != len(self._content):
            raise ValueError(f"damaged: {len(self._content)} bytes instead of {self._position}")

    def _check_dictionary(self) -> tuple[int, int, int]:
        """Check the dictionary. Returns the numbers of words, of labels, and of n-grams left by pruning, or -1."""
        size, words, labels, _, pruned = self._numbers("3i2q")
        _require(words >= 0 and labels > 0 and words + labels == size, "size of the dictionary")
        for number in range(size):
            begin, self._position = self._position, self._content.find(b"\0", self._position) + 1
            _require(self._position > 0, "end of a word")
            if number >= words:
                _require(_is_utf8(self._content[begin : self._position]), "encoding of a label")
            count, kind = self._numbers("qb")
            _require(kind == (_WORD if number < words else _LABEL) and 0 < count < _MOST_COUNTED, "entry of a word")
        _require(pruned >= -1, "number of n-grams")
        if pruned > 0:
            rows = np.frombuffer(self._take(8 * pruned), "<i4")[1::2]
            _require(bool(((rows >= 0) & (rows < pruned)).all()), "row of an n-gram")
        return words, labels, pruned

    def _check_matrix(self, rows: int, columns: int, is_quantized: bool) -> None:
        has_norms = is_quantized and self._flag()
        _require(self._numbers("2q") == (rows, columns), "size of a matrix")
        if not is_quantized:
            self._check_floats(rows * columns)
            return
        (codes,) = self._numbers("i")
        self._take(max(0, codes))
        parts = self._check_quantizer(columns)
        _require(codes == rows * parts, "number of codes")
        if has_norms:
            self._take(rows)
            self._check_quantizer(1)

    def _check_quantizer(self, columns: int) -> int:
        """Check a product quantizer. Returns the number of its parts."""
        dim, parts, width, last = self._numbers("4i")
        _require(dim == columns and width > 0 and parts == math.ceil(dim / width), "sizes of a quantizer")
        _require(last == dim - (parts - 1) * width, "sizes of a quantizer")
        self._check_floats(dim * _CENTROIDS)
        return parts

    def _check_floats(self, count: int) -> None:
        weights = np.frombuffer(self._take(4 * count), "<f4")
        _require(bool((np.abs(weights) <= _LARGEST_WEIGHT).all()), "weight")  # False for NaN too

    def _flag(self) -> bool:
        (value,) = self._numbers("b")
        _require(value in (0, 1), "flag")
        return bool(value)

    def _numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f"<{layout}", self._take(struct.calcsize(f"<{layout}")))

    def _take(self, count: int) -> bytes:
        """The next bytes. Raises ValueError if the file ends before them."""
        begin, self._position = self._position, self._position + count
        if self._position > len(self._content):
            raise ValueError(f"truncated: {len(self._content)} bytes instead of at least {self._position}")
        return self._content[begin : self._position]


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"damaged: wrong {what}")
