"""What a SentencePiece model holds that SentencePiece's Python interface does not tell: its type, and kinds of pieces.

The file is a protocol buffer, described in SentencePiece's sentencepiece_model.proto.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple


class Kind(IntEnum):
    """What a piece is there for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelType(IntEnum):
    """How text is cut into pieces."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class Piece(NamedTuple):
    text: str
    score: float  # the higher the sooner it is merged, or its log probability
    kind: Kind


def read_model(model: bytes) -> tuple[ModelType, list[Piece]]:
    """The type of a model, and its pieces in the order of their ids. ValueError for what is not such a model."""
    try:
        return _read_model(model)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"not a SentencePiece model ({error})") from error


def _read_model(model: bytes) -> tuple[ModelType, list[Piece]]:
    pieces, model_type = [], ModelType.UNIGRAM
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
            pieces.append(Piece(piece.get(1, b"").decode(), score, Kind(piece.get(3, Kind.NORMAL))))
        elif number == 2:
            model_type = ModelType(dict(_fields(value)).get(3, ModelType.UNIGRAM))
    return model_type, pieces


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: an integer, or bytes that are to be read by who knows the field."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        size, place = _varint(message, place) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], place)
        yield number, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """An integer, seven bits a byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
