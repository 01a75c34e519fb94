"""Encodes lines as concatenated ids. Encodes each distinct word only once if that gives the same ids."""

import multiprocessing
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nmtkit.console.log import logger
from nmtkit.data.binary import Tokens, token_type
from nmtkit.machine.native_sources import STALE, is_stale
from nmtkit.text.spm_model import encodes_words_apart
from nmtkit.text.tokenizer import SENTENCEPIECE, SENTENCEPIECE_VOCAB, SPACE, Tokenizer
from nmtkit.text.vocabulary import EOS

try:
    from nmtkit import _words
except ImportError:  # not compiled
    _words = None  # type: ignore[assignment]
if _words and is_stale(_words):
    if multiprocessing.parent_process() is None:  # workers do not repeat the warning
        logger.warning(STALE, "_words")
    _words = None  # type: ignore[assignment]

_MAX_CACHE_BYTES = 1 << 24  # in each of two generations: typically 260,000 words
# Text with one of these is encoded line by line: SentencePiece reads ▁ as a space, and >>de<< may have spaces.
_MARKS = {SPACE: (), SENTENCEPIECE: ("▁".encode(),), SENTENCEPIECE_VOCAB: ("▁".encode(), b">>")}
_ANY = (b"",)  # every text contains it

Lengths = NDArray[np.int32]


class LineEncoder:
    """Encodes lines with a tokenizer, and caches the ids of words in bounded memory. Pickling drops the cache.

    Text that contains one of the `marks` is encoded line by line. By default, marks are derived from the tokenizer,
    which takes 0.2 seconds for a model with 32,000 pieces.
    """

    def __init__(self, tokenizer: Tokenizer, marks: tuple[bytes, ...] | None = None) -> None:
        self.tokenizer = tokenizer
        self._dtype = token_type(len(tokenizer.vocab))
        self._marks = _marks(tokenizer) if marks is None else marks
        if _words:
            self._cache = _words.cache(np.array([EOS], self._dtype).tobytes(), _MAX_CACHE_BYTES)

    def __reduce__(self) -> tuple[type["LineEncoder"], tuple[Tokenizer, tuple[bytes, ...]]]:
        return LineEncoder, (self.tokenizer, self._marks)

    def __call__(self, text: bytes) -> tuple[Tokens, Lengths]:
        """Encode UTF-8 lines (n,), each with a line feed, to concatenated ids (T,) and lengths (n,), with EOS in each
        line."""
        if any(mark in text for mark in self._marks):
            lines = text.decode().split("\n")[:-1]
            return self._concatenate([[*ids, EOS] for ids in self.tokenizer.encode(lines)])
        ids, lengths = self._concatenate(self.tokenizer.encode(_words.find_new(self._cache, text)))
        tokens = np.frombuffer(_words.encode(self._cache, ids.tobytes(), lengths.tobytes()), self._dtype)
        return tokens, np.diff(np.flatnonzero(tokens == EOS), prepend=-1).astype(np.int32)

    def _concatenate(self, sentences: list[list[int]]) -> tuple[Tokens, Lengths]:
        lengths = np.fromiter(map(len, sentences), np.int32, len(sentences))
        return np.fromiter(chain.from_iterable(sentences), self._dtype, int(lengths.sum())), lengths


def make_line_encoders(source: Tokenizer, target: Tokenizer) -> tuple[LineEncoder, LineEncoder]:
    """Return the encoders of both sides. If they have the same tokenizer, they share one encoder and its cache."""
    encoder = LineEncoder(source)
    return encoder, encoder if target is source else LineEncoder(target)


def _marks(tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """Find marks such that the ids of any text without them are the concatenated ids of its words."""
    if not _words or tokenizer.kind not in _MARKS:
        return _ANY
    is_separable = tokenizer.kind == SPACE or encodes_words_apart(tokenizer.model)
    return _MARKS[tokenizer.kind] if is_separable else _ANY
