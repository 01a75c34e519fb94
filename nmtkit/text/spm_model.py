"""Reads a SentencePiece model file for facts that its Python API does not expose, and appends pieces to it.

The file is a protocol buffer, defined in SentencePiece's sentencepiece_model.proto. SentencePiece's own module for it,
sentencepiece_model_pb2, imports only with the major version of protobuf that it was generated for, which TensorBoard
and SentencePiece do not require.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

_VARINT_BYTES = 10  # of 64 bits
_SPACE = "▁"  # how pieces spell a space
_SPLIT_SYMBOL = 1000  # a field that SentencePiece reserves for extensions, and skips
_KEEPS_INVISIBLE = 1001  # another such field
_TRIE_LABEL = 0x800000FF  # the bits of a trie's unit that tell whether it is a value, and for which byte it is


class PieceType(IntEnum):
    """`SentencePiece.Type` of the protocol buffer."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelType(IntEnum):
    """`TrainerSpec.ModelType` of the protocol buffer: the segmentation algorithm."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class Piece(NamedTuple):
    text: str
    score: float  # BPE: higher scores are merged first; unigram: log-probability
    type: PieceType


def read_model(model: bytes) -> tuple[ModelType, list[Piece]]:
    """Read the type of a serialized model, and its pieces in the order of their ids. Raises ValueError if malformed."""
    try:
        return _read_model(model)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"not a SentencePiece model ({error})") from error


def encodes_words_apart(model: bytes) -> bool:
    """Whether a line's pieces are those of its words, one after the other; U+0020 separates words.

    This holds for every line without the character ▁ if all of these conditions do:

    * Normalization adds ▁ before a text, collapses spaces, and has no rule that reads a space or writes ▁. A word then
      normalizes to ▁ and its characters, or to nothing, whatever stands beside it.
    * The model is BPE or has single characters, and no piece has ▁ after its beginning: no merge spans two words. Ties
      are broken from left to right, so merges in one word never depend on another. The sums of a unigram model do:
      their rounding depends on all words before.
    * ▁ is a piece: no word begins with an unknown piece, which would be joined to one before. No piece is UNUSED:
      such pieces are split as they were merged last, maybe in another word.
    * No split symbol has a space.

    Raises ValueError if the model is malformed.
    """
    model_type, pieces = read_model(model)
    if model_type not in (ModelType.BPE, ModelType.CHAR) or any(piece.type == PieceType.UNUSED for piece in pieces):
        return False
    texts = {piece.text for piece in pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
    if _SPACE not in texts or any(_SPACE in text[1:] or " " in text for text in texts):
        return False
    if any(" " in symbol for symbol in read_split_symbols(model)):
        return False
    return _normalizes_words_apart(model)


def _normalizes_words_apart(model: bytes) -> bool:
    settings = {2: b"", 3: b""}  # of the trainer and the normalizer
    for number, value in _fields(model):
        if number in settings:
            settings[number] += value
    trainer, normalizer = (dict(_fields(content)) for content in settings.values())
    has_suffixes = trainer.get(24, 0)  # ▁ after a word instead of before it
    if has_suffixes or not all(normalizer.get(field, 1) for field in (3, 4, 5)):  # prefix, collapsed spaces, ▁ for them
        return False
    rules = normalizer.get(2, b"")  # a trie of the texts to replace, after its size; then the replacements
    if not rules:
        return True
    (size,) = struct.unpack_from("<I", rules)
    units = np.frombuffer(rules, "<u4", size // 4, 4)
    return _SPACE.encode() not in rules[4 + size :] and not (units & _TRIE_LABEL == ord(" ")).any()


def append_user_symbols(model: bytes, symbols: Iterable[str]) -> bytes:
    """Append pieces to a serialized model that text is never split within, with the next ids and a score of 0.

    Fields of a protocol buffer can be in any order: those at the end belong to the same list as earlier ones.
    """
    for symbol in symbols:
        piece = _message(1, symbol.encode()) + b"\x18" + bytes([PieceType.USER_DEFINED])  # field 3 is the type
        model += _message(1, piece)
    return model


def append_split_symbols(model: bytes, symbols: Iterable[str]) -> bytes:
    """Append symbols to a serialized model. Text is split at them before SentencePiece segments the parts.

    A symbol of `append_user_symbols` differs: SentencePiece segments the line as a whole, so the text after a symbol is
    not the beginning of a line, and a line that begins with a symbol has the piece ▁ before it.
    """
    return model + b"".join(_message(_SPLIT_SYMBOL, symbol.encode()) for symbol in symbols)


def read_split_symbols(model: bytes) -> list[str]:
    """Read the symbols of `append_split_symbols`. Raises ValueError if the model is malformed."""
    try:
        return [str(value, "utf-8") for number, value in _fields(model) if number == _SPLIT_SYMBOL]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a SentencePiece model ({error})") from error


def mark_invisible_kept(model: bytes) -> bytes:
    """Record in a serialized model that its text keeps invisible characters, see `nmtkit.text.invisible`."""
    return model + _INVISIBLE_KEPT


def keeps_invisible(model: bytes) -> bool:
    """Whether `mark_invisible_kept` was applied to a serialized model."""
    return _INVISIBLE_KEPT in model  # reading all fields would take a tenth of a second


def _message(number: int, content: bytes) -> bytes:
    """Encode a field of bytes."""
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


_INVISIBLE_KEPT = _message(_KEEPS_INVISIBLE, b"invisible characters are kept")


def _read_model(model: bytes) -> tuple[ModelType, list[Piece]]:
    pieces, model_type = [], ModelType.UNIGRAM
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
            pieces.append(Piece(str(piece.get(1, b""), "utf-8"), score, PieceType(piece.get(3, PieceType.NORMAL))))
        elif number == 2:
            model_type = ModelType(dict(_fields(value)).get(3, ModelType.UNIGRAM))
    return model_type, pieces


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a message: an int for a varint, otherwise the raw bytes."""
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
            raise ValueError("cut short")
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode a varint (7 bits per byte, lowest first), and return it with the position after it."""
    if message[position] < 0x80:  # nearly all of them
        return message[position], position + 1
    value = 0
    for place in range(_VARINT_BYTES):
        byte = message[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError(f"a number of more than {_VARINT_BYTES} bytes")
