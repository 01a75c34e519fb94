"""The vocabulary: pieces to ids and back. The four special ids are the same in every dataset."""

from collections.abc import Iterable, Sequence

from nmtkit.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_MANY_UNKNOWN = 10  # percent of the tokens of a text, beyond what names and numbers make


class Vocabulary:
    """An ordered list of pieces; the id of a piece is its place. The first four are PAD, UNK, BOS and EOS."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces = list(pieces)
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        if tuple(self.pieces[: len(SPECIALS)]) != SPECIALS:
            raise UserError(f"a vocabulary must begin with {' '.join(SPECIALS)}")
        if len(self._ids) != len(self.pieces):
            twice = next(piece for number, piece in enumerate(self.pieces) if self._ids[piece] != number)
            raise UserError(f"the vocabulary lists {twice!r} twice")
        broken = next((piece for piece in self.pieces if "\n" in piece), None)
        if broken is not None:
            raise UserError(f"piece {broken!r} has a line feed, which a vocabulary file cannot hold")
        for special in SPECIALS:  # a text that spells one out must not end a sentence or pad it
            del self._ids[special]

    def __len__(self) -> int:
        return len(self.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.pieces == other.pieces

    __hash__ = None  # type: ignore[assignment]

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """The id of each piece; UNK for one that the vocabulary does not hold, and for the name of a special id."""
        return [self._ids.get(piece, UNK) for piece in pieces]

    def text(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id."""
        return [self.pieces[number] for number in ids]

    def to_bytes(self) -> bytes:
        """As a file: one piece a line in UTF-8, so that the line number counted from 0 is the id."""
        return "".join(f"{piece}\n" for piece in self.pieces).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Vocabulary":
        """The inverse of `to_bytes`. Raises UserError for content that `to_bytes` never gives."""
        try:
            *pieces, rest = content.decode().split("\n")
        except UnicodeDecodeError as error:
            raise UserError("not a vocabulary: not UTF-8") from error
        if rest:
            raise UserError("not a vocabulary: its last line has no line feed")
        return cls(pieces)


def unknown_percent(unknown: int, tokens: int) -> float:
    """How many of a text's tokens, each `</s>` counted, are unknown, as reports have it."""
    return round(100 * unknown / max(tokens, 1), 3)


def doubt_unknown(text: str, percent: float) -> str | None:
    """What to warn of where so many of a text's tokens are unknown; None where they are few."""
    if percent <= _MANY_UNKNOWN:
        return None
    return (
        f"{percent:.3g}% of the tokens of {text} are unknown to the vocabulary: is it segmented and cased as the "
        "training text was?"
    )
