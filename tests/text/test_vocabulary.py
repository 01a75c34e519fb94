"""Pieces to ids and back."""

import pytest

from nmtkit.errors import UserError
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary


def test_the_special_ids_come_first() -> None:
    vocab = Vocabulary([*SPECIALS, "a"])
    assert vocab.to_pieces([PAD, UNK, BOS, EOS, 4]) == ["<pad>", "<unk>", "<s>", "</s>", "a"]


def test_ids_and_text_are_inverse() -> None:
    vocab = Vocabulary([*SPECIALS, "Haus", "▁", "\u2028"])
    assert vocab.to_pieces(vocab.to_ids(["▁", "Haus", "\u2028"])) == ["▁", "Haus", "\u2028"]


def test_an_unknown_piece_is_unk() -> None:
    assert Vocabulary([*SPECIALS, "a"]).to_ids(["a", "b"]) == [4, UNK]


def test_names_of_special_tokens_in_text_become_unk() -> None:
    assert Vocabulary([*SPECIALS, "a"]).to_ids(SPECIALS) == [UNK] * 4


def test_a_vocabulary_survives_its_file() -> None:
    vocab = Vocabulary([*SPECIALS, "Straße", "a b", "\r", "\u2028", "日本"])
    assert Vocabulary.from_bytes(vocab.to_bytes()) == vocab


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must begin with"),
        (b"<pad>\n<s>\n<unk>\n</s>\n", "must begin with"),
        (b"<pad>\n<unk>\n<s>\n</s>\na\na\n", "lists 'a' twice"),
        (b"<pad>\n<unk>\n<s>\n</s>\n\xff\n", "not UTF-8"),
        (b"<pad>\n<unk>\n<s>\n</s>\na\nb", "its last line has no line feed"),
    ],
)
def test_a_file_that_is_not_a_vocabulary_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Vocabulary.from_bytes(content)
