"""Forbidden words and required terms that stand in running text without a space before them."""

from collections.abc import Sequence

import pytest

from nmtkit.decoding.config import StreamConfig
from nmtkit.decoding.requests import Request
from nmtkit.decoding.rules import contains
from nmtkit.decoding.tasks import SentenceEncoder, SourceLimit
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import (
    SentencePieceTokenizer,
    SpaceTokenizer,
    Tokenizer,
    pieces_with,
    without_space,
)
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

LINES = [
    "Der Hund , der (groß) ist, rennt.",
    "Die Katze: sie schläft (hier)!",
    "彼は犬が好きです。",
    "犬が走る、速く。",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    model = train_sentencepiece(
        LINES * 20, vocab_size=80, model_type="bpe", character_coverage=1.0, byte_fallback=False, threads=1
    )
    return SentencePieceTokenizer(model)


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> SentenceEncoder:
    return SentenceEncoder(tokenizer, tokenizer, positions=None)


def occurs(banned: Sequence[tuple[int, ...]], ids: Sequence[int]) -> bool:
    return contains(tuple(ids), tuple(banned))


@pytest.mark.parametrize("word", [",", "(", "。", "犬", "Hund"])
def test_a_banned_word_is_found_wherever_a_line_has_it(
    word: str, encoder: SentenceEncoder, tokenizer: Tokenizer
) -> None:
    banned = encoder.banned([word])
    for line, ids in zip(LINES, tokenizer.encode(LINES), strict=True):
        assert occurs(banned, ids) == (word in line), line


def test_a_banned_word_is_not_found_at_the_end_of_a_longer_one(encoder: SentenceEncoder, tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(["Der Hund"])
    assert not occurs(encoder.banned(["und"]), ids)


@pytest.mark.parametrize(
    ("text", "term", "joined"),
    [
        ("Der Hund", ",", "Der Hund,"),
        ("Der Hund", ".", "Der Hund."),
        ("彼は", "犬", "彼は犬"),
        ("Der Hund", "Katze", "Der Hund Katze"),
        ("Der Hund", "(groß)", "Der Hund (groß)"),
    ],
)
def test_a_required_term_has_a_space_before_it_if_its_script_does(
    text: str, term: str, joined: str, encoder: SentenceEncoder, tokenizer: Tokenizer
) -> None:
    limit = SourceLimit.of(StreamConfig(), positions=None)
    (sentence,) = encoder.sentences([Request("x", terms=(term,))], limit, first_line=1)
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode([*ids, *sentence.tasks[0].constraints.terms[0][0]]) == joined


def test_the_space_before_a_text_is_removed_if_the_vocabulary_has_the_rest() -> None:
    vocab = Vocabulary([*SPECIALS, "▁", ",", "▁Hund", "Hund", "▁a", "x"])
    ids = {piece: number for number, piece in enumerate(vocab.pieces)}
    assert without_space([ids["▁"], ids[","]], vocab) == (ids[","],)
    assert without_space([ids["▁Hund"], ids["x"]], vocab) == (ids["Hund"], ids["x"])
    assert without_space([ids["▁a"], ids["x"]], vocab) is None
    assert without_space([ids["▁"]], vocab) is None


def test_special_tokens_and_bytes_contain_no_text() -> None:
    vocab = Vocabulary([*SPECIALS, "<0x3C>", "a<", "▁<b"])
    assert pieces_with("<", vocab) == [vocab.pieces.index("a<"), vocab.pieces.index("▁<b")]


def test_words_of_segmented_text_stay_as_they_are() -> None:
    words = SpaceTokenizer(Vocabulary([*SPECIALS, ",", "Hund"]))
    assert SentenceEncoder(words, words, positions=None).banned([",", "Hund"]) == ((4,), (5,))
