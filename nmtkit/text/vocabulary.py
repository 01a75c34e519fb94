"""The vocabulary: maps pieces to ids and back. All datasets have the same four special ids."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from nmtkit.console.log import logger
from nmtkit.errors import UserError
from nmtkit.wording import quoted

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
NEVER_OUTPUT = (PAD, BOS)  #: excluded from the softmax, also in nmtkit/native/log_softmax.h
_MANY_UNKNOWN = 10  # percent of tokens: more than rare names and numbers explain


def refuse_repeated_pieces(pieces: Sequence[str]) -> None:
    """Raise UserError with the piece if a vocabulary lists one twice."""
    for piece, count in Counter(pieces).items():
        if count > 1:
            raise UserError(f"the vocabulary lists {quoted(piece)} twice")


class Vocabulary:
    """An ordered list of pieces. The id of a piece is its index; the first four are PAD, UNK, BOS and EOS."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = list(pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        if tuple(self.pieces[: len(SPECIALS)]) != SPECIALS:
            raise UserError(f"a vocabulary must begin with {' '.join(SPECIALS)}")
        if len(self._ids) < len(self.pieces):
            refuse_repeated_pieces(self.pieces)
        invalid = next((piece for piece in self.pieces if "\n" in piece), None)
        if invalid is not None:
            raise UserError(f"piece {quoted(invalid)} contains a line feed, which a vocabulary file cannot store")
        for special in SPECIALS:  # text that contains `</s>` must not end a sentence
            del self._ids[special]

    def __len__(self) -> int:
        return len(self.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.pieces == other.pieces

    def to_ids(self, pieces: Iterable[str]) -> list[int]:
        """Look up the id of each piece: UNK for an unknown piece and for the name of a special id."""
        return [self._ids.get(piece, UNK) for piece in pieces]

    def to_pieces(self, ids: Sequence[int], segmented: Iterable[str] = ()) -> list[str]:
        """Look up the piece of each id. If any is UNK and `segmented` has as many pieces, return these instead."""
        if UNK in ids and len(pieces := list(segmented)) == len(ids):
            return pieces
        return [self.pieces[number] for number in ids]

    def to_bytes(self) -> bytes:
        """Serialize as UTF-8, one piece per line; the line number, counted from 0, is the id."""
        return "".join(f"{piece}\n" for piece in self.pieces).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Vocabulary":
        """Restore a vocabulary from `to_bytes`. Raises UserError if the content is malformed."""
        try:
            *pieces, rest = content.decode().split("\n")
        except UnicodeDecodeError as error:
            raise UserError("not a vocabulary: not UTF-8") from error
        if rest:
            raise UserError("not a vocabulary: its last line has no line feed")
        return cls(pieces)


def symbol_pattern(symbols: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern whose `split` returns texts, at even positions, and the symbols between them.

    It finds the leftmost symbol first, and the longest if several begin there. Without symbols, it finds nothing.
    """
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def unknown_percent(unknown: int, tokens: int) -> float:
    """Return the percentage of unknown tokens, rounded for reports. `tokens` counts each `</s>`."""
    return round(100 * unknown / max(tokens, 1), 3)


def warn_of_unknown(text: str, percent: float) -> None:
    """Warn if the percentage of unknown tokens is too high. `text` names the text in the message."""
    if percent > _MANY_UNKNOWN:
        logger.warning(
            "%.3g%% of the tokens of %s are unknown to the vocabulary: is it segmented and cased like the training "
            "text? With --byte-fallback or a larger --character-coverage, nmt-preprocess makes a vocabulary that "
            "covers more text",
            *(percent, text),
        )
