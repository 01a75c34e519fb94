"""Overlong sentences in parts: nothing is lost, and the parts end where a reader would end them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.decoding.overlong import join, parts


def parted(text: str, longest: int, language: str = "en") -> list[str]:
    """The parts of a text whose tokens are its characters."""
    found = parts(list(range(len(text))), list(text), longest, language)
    return ["".join(text[number] for number in part) for part in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One dog ran. Two, no, three sat. End", ["One dog ran.", " Two, no, three sat.", " End"]),
        ("He said “go.” Then, as ever, he went", ["He said “go.”", " Then, as ever,", " he went"]),
        ("a text without any mark that ends", ["a text without any", " mark that ends"]),
        ("pi is 3.14159265, or about 3.1416", ["pi is 3.14159265,", " or about 3.1416"]),
        ("犬が走る。猫が座る。鳥、魚、馬と牛がいる。おわり", ["犬が走る。猫が座る。", "鳥、魚、馬と牛がいる。おわり"]),
        ("她说：“走吧！”然后、他一个人就慢慢地走开了去了", ["她说：“走吧！”", "然后、他一个人就慢慢地走开了去了"]),
        ("هل ذهب؟ نعم، ذهب إلى البيت أمس", ["هل ذهب؟", " نعم،", " ذهب إلى البيت أمس"]),
        ("वह गया। फिर वह घर आया और सो गया", ["वह गया।", " फिर वह घर आया और सो", " गया"]),
        ("I met Dr. Smith in May. Then he went", ["I met Dr. Smith in", " May. Then he went"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("short", ["short"]),
    ],
)
def test_a_line_is_split_at_a_sentence_else_a_clause_else_a_word(text: str, expected: list[str]) -> None:
    assert parted(text, 20) == expected


@given(text=st.text(st.sampled_from("ab .,。、」\u3000"), min_size=1), longest=st.integers(1, 9))
def test_parts_fit_and_lose_nothing(text: str, longest: int) -> None:
    found = parted(text, longest)
    assert "".join(found) == text
    assert all(1 <= len(part) <= longest for part in found)


def test_a_character_encoded_as_byte_pieces_is_kept_together_if_it_fits() -> None:
    assert parts([1, 2, 3, 4, 5], ["a", "", "", "€", "b"], 3, "en") == [[1], [2, 3, 4], [5]]
    assert parts([1, 2, 3], ["", "", "€"], 2, "en") == [[1, 2], [3]]


def test_translations_of_parts_are_joined_with_spaces_only_where_the_script_uses_them() -> None:
    assert join(["Ein Hund.", "", "Eine Katze."]) == "Ein Hund. Eine Katze."
    assert join(["犬が走る。", "猫が座る。", "The end."]) == "犬が走る。猫が座る。 The end."
    assert join(["", ""]) == ""
