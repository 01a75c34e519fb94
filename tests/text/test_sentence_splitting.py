"""Splitting text into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "Dr. Smith left at 5 p.m. on Friday. ‖See No. 5 and Eq. 3. ‖No! ‖He said “hi!” to us. ‖It is $3.50."),
        ("en_GB", "i went home. ‖he left."),
        ("de-AT", "Im 19. Jahrhundert, z. B. am 3. Mai, kam Karl V. her. ‖„Kommst du?“, fragte sie."),
        ("fra", "M. Dupont a lu l'art. 5 de la loi. ‖« Viens ! » dit-il. ‖Quel âge as-tu\u202f? ‖Dix ans."),
        ("ja", "彼は「行こう！」と言った。‖「はい。」‖「価格は3.5ドル？！」"),
        ("zh", "“你好！”她低声说。‖“再见！”‖我用的是Windows 11。"),
        ("hi", "डॉ. शर्मा आए। ‖कीमत 3.5 है। ‖तुम?"),
        ("ar", "وصل د. أحمد أمس. ‖هل أنت بخير؟ ‖نعم."),
        ("th", "ดร. สมชาย เกิดเมื่อ พ.ศ. 2530 และย้ายไป"),
        ("mul", "1. One. ‖2. Two. !!"),
    ],
)
def test_text_is_split_at_the_ends_of_sentences(language: str, expected: str) -> None:
    assert split_sentences(expected.replace("‖", ""), language) == expected.split("‖")


@given(
    st.text(st.sampled_from("aA.!?。「」” \u00a0\u2028\ufeff\n1éЖ…“(*:\ud800")),
    st.sampled_from(["en", "ja", "zh", "th"]),
)
def test_no_text_is_lost_and_no_part_is_blank(text: str, language: str) -> None:
    parts = split_sentences(text, language)
    assert "".join(parts) == text
    assert all(part.strip() for part in parts) or not text.strip()


def test_a_protected_span_is_not_divided() -> None:
    text = "Look. It works. Fine."
    assert split_sentences(text, "en", [(0, 14)]) == ["Look. It works. ", "Fine."]
