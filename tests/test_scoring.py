"""Scores against sacreBLEU itself and against a case counted by hand."""

import math

import pytest
import sacrebleu

from nmtkit.decoding.scoring import bleu, chrf, tokenized_bleu

HYPOTHESES = ["Ein Hund läuft (schnell).", "Zwei Männer reden, sie lachen.", ""]
REFERENCES = ["Ein Hund rennt schnell.", "Zwei Männer reden und lachen.", "Nichts."]


def test_scores_are_those_of_sacrebleu() -> None:
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    score = bleu(HYPOTHESES, REFERENCES, "de")
    assert score.value == expected.score
    assert score.text.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    score = chrf(HYPOTHESES, REFERENCES)
    assert score.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert score.text.startswith("chrF2|nrefs:1|")


def test_tokenized_bleu_counts_words_between_spaces() -> None:
    hypothesis, reference = "a b c d e x", "a b c d e f g"
    # n-grams that match: 5 of 6, 4 of 5, 3 of 4, 2 of 3; brevity penalty exp(1 - 7/6)
    expected = 100 * math.exp(1 - 7 / 6) * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    score = tokenized_bleu([hypothesis], [reference])
    assert score.value == pytest.approx(expected)
    assert "|tok:none|" in score.text


def test_tokenized_bleu_joins_subwords_on_both_sides() -> None:
    words, pieces = "ein hund läuft auf dem gras", "ein hund lä@@ uf@@ t auf dem gr@@ as"
    assert tokenized_bleu([words], [pieces]).value == tokenized_bleu([pieces], [words]).value == pytest.approx(100)


def test_tokenized_bleu_gives_nothing_for_an_unknown_word_of_the_reference() -> None:
    sentence = "the <unk> dog runs over the street"
    other_word = sentence.replace("<unk>", "big")
    assert tokenized_bleu([sentence], [sentence]).value == tokenized_bleu([sentence], [other_word]).value < 100


@pytest.mark.parametrize(("language", "tokenization"), [("ja", "char"), ("zh", "zh"), ("zh_TW", "zh"), ("cs", "13a")])
def test_languages_without_spaces_are_not_counted_as_one_word(language: str, tokenization: str) -> None:
    assert f"|tok:{tokenization}|" in bleu(["猫がいる。"], ["犬がいる。"], language).text


def test_tokenized_periods_bring_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    bleu(["a dog runs ."] * 200, ["a dog runs ."] * 200, "en")
    tokenized_bleu(["a dog runs ."] * 200, ["a dog runs ."] * 200)
    assert capfd.readouterr().err == ""
