"""Encodes lines as concatenated ids. Each distinct word is encoded once where that gives the same ids."""

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nmtkit.data.binary import Tokens, token_type
from nmtkit.errors import UserError
from nmtkit.spm_model import encodes_words_apart
from nmtkit.tokenizer import SENTENCEPIECE, SENTENCEPIECE_VOCAB, SPACE, Tokenizer
from nmtkit.vocab import EOS

_LINE_END = "\n"  # no line has one inside
_MAX_WORD = 64  # characters of a cached word; a longer one is hardly ever seen again
_MAX_WORDS = 1 << 17  # in each of two generations of the cache: typically 40 MB for both
# A line with one of these is encoded as a whole: ▁ is a space for SentencePiece, and a tag like >>de<< can have spaces.
_INSEPARABLE = {SPACE: (), SENTENCEPIECE: ("▁",), SENTENCEPIECE_VOCAB: ("▁", ">>")}
_ANY = ("",)  # in every line

Lengths = NDArray[np.int32]


class LineEncoder:
    """Encodes lines with a tokenizer, and caches the ids of words in bounded memory. Pickling drops the cache.

    A cache that is full becomes the older generation, whose words move to the new one when they are used again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._inseparable = _INSEPARABLE[tokenizer.kind] if _has_separate_words(tokenizer) else _ANY
        self._dtype = token_type(len(tokenizer.vocab))
        self._words, self._older = self._new_generation(), dict[str, bytes]()

    def __reduce__(self) -> tuple[type["LineEncoder"], tuple[Tokenizer]]:
        return LineEncoder, (self.tokenizer,)

    def __call__(self, lines: Sequence[str]) -> tuple[Tokens, Lengths]:
        """Encode lines, each with EOS at its end: the concatenated ids, and the length of each line."""
        units = self._split(lines)
        missing = set(units).difference(self._words)
        self._add(missing)
        tokens = np.frombuffer(b"".join(map(self._words.__getitem__, units)), self._dtype)
        for unit in missing:
            if len(unit) > _MAX_WORD:
                del self._words[unit]
        if len(self._words) > _MAX_WORDS:
            self._words, self._older = self._new_generation(), self._words
        return tokens, np.diff(np.flatnonzero(tokens == EOS), prepend=-1).astype(np.int32)

    def _new_generation(self) -> dict[str, bytes]:
        return {_LINE_END: np.array([EOS], self._dtype).tobytes()}

    def _split(self, lines: Sequence[str]) -> list[str]:
        """Split lines into the units that are encoded: words or whole lines, each line followed by a line end."""
        text = f" {_LINE_END} ".join([*lines, ""])
        if not any(mark in text for mark in self._inseparable):
            return text.split(" ")[:-1]
        return [unit for line in lines for unit in (*self._units(line), _LINE_END)]

    def _units(self, line: str) -> list[str]:
        return [line] if any(mark in line for mark in self._inseparable) else line.split(" ")

    def _add(self, missing: Iterable[str]) -> None:
        """Add units to the cache: from its older generation, or encoded."""
        known = {unit: self._older[unit] for unit in missing if unit in self._older}
        new = [unit for unit in missing if unit not in known]
        encoded = self.tokenizer.encode(new)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ids = np.fromiter(chain.from_iterable(encoded), self._dtype, int(lengths.sum())).tobytes()
        ends = (np.cumsum(lengths) * self._dtype.itemsize).tolist()
        self._words.update(known)
        self._words.update(zip(new, map(ids.__getitem__, map(slice, [0, *ends], ends)), strict=True))


def make_line_encoders(source: Tokenizer, target: Tokenizer) -> tuple[LineEncoder, LineEncoder]:
    """The encoders of both sides: one with a common cache if they have the same tokenizer."""
    encoder = LineEncoder(source)
    return encoder, encoder if target is source else LineEncoder(target)


def _has_separate_words(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a line are those of its words, unless it has a mark of `_INSEPARABLE`."""
    if tokenizer.kind not in _INSEPARABLE:
        return False
    try:
        return tokenizer.kind == SPACE or encodes_words_apart(tokenizer.model)
    except ValueError as error:
        raise UserError(str(error)) from error
