"""SentencePiece models that are damaged, or made to do harm."""

import random

import pytest
from sentencepiece import SentencePieceProcessor

from nmtkit.text.spm_model import read_model
from nmtkit.text.tokenizer import train_sentencepiece

PIECE = b"\x0a\x0a\x0a\x01a\x15\x00\x00\x80\x3f\x18\x01"  # a, 1.0, NORMAL


def test_a_hand_encoded_piece_is_parsed() -> None:
    assert [tuple(piece) for piece in read_model(PIECE)[1]] == [("a", 1.0, 1)]


@pytest.mark.parametrize(
    "model",
    [
        b"no model at all",
        PIECE[:-1],  # cut short within a piece
        PIECE[:-1] + b"\x09",  # an unknown type of piece
        PIECE.replace(b"a", b"\xff"),  # not UTF-8
        b"\x0a\x02\x08\x01",  # a text that is a number
        b"\x08\x01",  # a piece that is a number
        b"\x0b",  # an unknown kind of field
        b"\x80" * 1_000_000 + b"\x01",  # a number without end
    ],
)
def test_a_malformed_model_is_refused(model: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a SentencePiece model"):
        read_model(model)


def test_a_damaged_model_is_refused_or_parsed_as_by_sentencepiece() -> None:
    draw = random.Random(1)
    lines = [" ".join(draw.choices(["hund", "katze", "läuft", "über"], k=5)) for _ in range(50)]
    model = train_sentencepiece(
        lines, vocab_size=30, model_type="bpe", character_coverage=1.0, byte_fallback=False, threads=1
    )
    accepted = 0
    for _ in range(500):
        damaged = bytearray(model)
        damaged[draw.randrange(len(model))] = draw.randrange(256)
        try:
            _, pieces = read_model(bytes(damaged))
            processor = SentencePieceProcessor(model_proto=bytes(damaged))
        except (ValueError, RuntimeError):
            continue
        accepted += 1
        assert [piece.text for piece in pieces] == [processor.id_to_piece(i) for i in range(len(processor))]
    assert accepted
