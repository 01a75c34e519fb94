"""Reads facts from a SentencePiece model file that its Python API does not expose, and appends pieces to it.

The file is a protocol buffer, defined in SentencePiece's sentencepiece_model.proto. SentencePiece's own module,
sentencepiece_model_pb2, can be imported only with the major version of protobuf for which it was generated, and neither
TensorBoard nor SentencePiece requires that version.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from nmtkit.errors import UserError

_VARINT_BYTES = 10  # for 64 bits
_SPACE = "▁"  # spells a space in pieces
# Fields reserved for extensions, which SentencePiece ignores.
#: Symbols at which text is split before SentencePiece segments the parts. With `append_user_symbols`, it segments the
#: whole line: text after a symbol is then not the beginning of a line, and ▁ comes before a symbol at the beginning.
SPLIT_SYMBOL = 1000
_KEEPS_INVISIBLE = 1001
LANGUAGE_CODE = 1002  #: language codes, see `SentencePieceVocabTokenizer.language_codes`
_TRIE_LABEL = 0x800000FF  # bits of a trie unit that give its byte, and whether it is a value


class PieceType(IntEnum):
    """Types of pieces, `SentencePiece.Type` in the protocol buffer."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelType(IntEnum):
    """Segmentation algorithms, `TrainerSpec.ModelType` in the protocol buffer."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class Piece(NamedTuple):
    text: str
    score: float  # BPE: higher scores are merged first; unigram: log-probability
    type: PieceType


def read_model(model: bytes) -> tuple[ModelType, list[Piece]]:
    """Return the type of a serialized model, and its pieces in order of ids. Raises UserError if malformed."""
    pieces, model_type = [], ModelType.UNIGRAM
    with _as_user_errors():
        for number, value in _fields(model):
            if number == 1:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
                pieces.append(Piece(str(piece.get(1, b""), "utf-8"), score, PieceType(piece.get(3, PieceType.NORMAL))))
            elif number == 2:
                model_type = ModelType(dict(_fields(value)).get(3, ModelType.UNIGRAM))
    return model_type, pieces


@contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise UserError(f"not a SentencePiece model ({error})") from error


def encodes_words_apart(model: bytes) -> bool:
    """Whether the pieces of a line are the concatenated pieces of its words, separated by U+0020.

    This holds for every line without the character ▁ under all of these conditions:

    * Normalization adds ▁ before a text, collapses spaces, and has no rule that reads a space or writes ▁. A word then
      normalizes to ▁ and its characters, or to nothing, regardless of its neighbors.
    * The model is BPE or has single characters, and no piece contains ▁ after its beginning: no merge spans two words.
      Ties are broken from left to right, so merges in a word never depend on other words. The sums of a unigram model
      do: their rounding depends on all earlier words.
    * ▁ is a piece: no word begins with an unknown piece, which would be joined to an earlier one. No piece is UNUSED:
      such pieces are split as they were last merged, perhaps in a different word.
    * No split symbol contains a space.
    """
    model_type, pieces = read_model(model)
    if model_type not in (ModelType.BPE, ModelType.CHAR) or any(piece.type == PieceType.UNUSED for piece in pieces):
        return False
    texts = {piece.text for piece in pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
    if _SPACE not in texts or any(_SPACE in text[1:] or " " in text for text in texts):
        return False
    if any(" " in symbol for symbol in read_symbols(model, SPLIT_SYMBOL)):
        return False
    return _normalizes_words_apart(model)


def _normalizes_words_apart(model: bytes) -> bool:
    settings = {2: b"", 3: b""}  # trainer and normalizer
    for number, value in _fields(model):
        if number in settings:
            settings[number] += value
    trainer, normalizer = (dict(_fields(content)) for content in settings.values())
    has_suffixes = trainer.get(24, 0)  # ▁ after a word instead of before it
    if has_suffixes or not all(normalizer.get(field, 1) for field in (3, 4, 5)):  # prefix, single spaces, ▁ as space
        return False
    rules = normalizer.get(2, b"")  # size and trie of the texts to replace, then the replacements
    if not rules:
        return True
    (size,) = struct.unpack_from("<I", rules)
    units = np.frombuffer(rules, "<u4", size // 4, 4)
    return _SPACE.encode() not in rules[4 + size :] and not (units & _TRIE_LABEL == ord(" ")).any()


def mark_unused(model: bytes, dropped: Collection[str]) -> bytes:
    """Mark `dropped` pieces of a serialized model as unused: they remain for merges, and are then split into others."""
    unused = b"\x18" + bytes([PieceType.UNUSED])  # the last value of a field counts
    marked = bytearray()
    for number, value in _fields(model):
        is_dropped = number == 1 and str(dict(_fields(value))[1], "utf-8") in dropped
        marked += _message(number, value + unused if is_dropped else value)
    return bytes(marked)


def append_characters(model: bytes, characters: Iterable[str]) -> bytes:
    """Append characters that a serialized model lacks as its least probable pieces."""
    pieces = read_model(model)[1]
    present, lowest = {piece.text for piece in pieces}, min(piece.score for piece in pieces) - 1
    for character in characters:
        if character not in present:
            model += _message(1, _message(1, character.encode()) + b"\x15" + struct.pack("<f", lowest))
    return model


def append_user_symbols(model: bytes, symbols: Iterable[str], like: str = "") -> bytes:
    """Append user-defined pieces, which are never split, to a serialized model, with the next ids and a score of 0.

    Symbols become split symbols if `like` is one. This works because fields of a protocol buffer can have any order.
    """
    extensions = {number for number, value in _fields(model) if number >= SPLIT_SYMBOL and value == like.encode()}
    if extensions:
        return model + b"".join(_message(number, symbol.encode()) for number in extensions for symbol in symbols)
    for symbol in symbols:
        piece = _message(1, symbol.encode()) + b"\x18" + bytes([PieceType.USER_DEFINED])  # field 3 is the type
        model += _message(1, piece)
    return model


def append_symbols(model: bytes, field: int, symbols: Iterable[str]) -> bytes:
    """Append symbols to a serialized model: `SPLIT_SYMBOL` or `LANGUAGE_CODE`."""
    return model + b"".join(_message(field, symbol.encode()) for symbol in symbols)


def read_symbols(model: bytes, field: int) -> list[str]:
    """Read the symbols of `append_symbols`. Raises UserError if the model is malformed."""
    if _encode_varint(field << 3 | 2) not in model:  # reading all fields takes long
        return []
    with _as_user_errors():
        return [str(value, "utf-8") for number, value in _fields(model) if number == field]


def without_language_codes(model: bytes) -> bytes:
    """Return a serialized model without its language codes."""
    return b"".join(_message(number, value) for number, value in _fields(model) if number != LANGUAGE_CODE)


def _message(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


#: Part of a serialized model whose text keeps invisible characters, see `nmtkit.text.invisible`.
INVISIBLE_KEPT = _message(_KEEPS_INVISIBLE, b"invisible characters are kept")


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field in a message: an int for a varint, otherwise raw bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        size, position = _varint(message, position) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], position)
        if size > len(message) - position:
            raise ValueError("truncated")
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode a varint (7 bits per byte, lowest first); return it with the position after it."""
    if message[position] < 0x80:  # nearly all of them
        return message[position], position + 1
    value = 0
    for place in range(_VARINT_BYTES):
        byte = message[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError(f"a number of more than {_VARINT_BYTES} bytes")
