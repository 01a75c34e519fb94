"""Reading a SentencePiece model, whole and damaged."""

import pytest

from nmtkit.errors import UserError
from nmtkit.text.spm_model import read_model

PIECE = b"\x0a\x0a\x0a\x01a\x15\x00\x00\x80\x3f\x18\x01"  # a, 1.0, NORMAL


def test_a_hand_encoded_piece_is_parsed() -> None:
    assert [tuple(piece) for piece in read_model(PIECE)[1]] == [("a", 1.0, 1)]


@pytest.mark.parametrize(
    "model",
    [
        b"no model at all",
        PIECE[:-1],  # cut short within a piece
        PIECE.replace(b"a", b"\xff"),  # not UTF-8
    ],
)
def test_a_malformed_model_is_refused(model: bytes) -> None:
    with pytest.raises(UserError, match=r"^not a SentencePiece model"):
        read_model(model)
