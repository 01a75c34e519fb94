"""Scores against sacreBLEU itself and against a case counted by hand."""

import math

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab

from nmtkit.errors import RunError, UserError
from nmtkit.scoring.bleu import (
    Score,
    bleu,
    chrf,
    moses_metric,
    published_metrics,
    sacrebleu_metric,
    score,
    tokenized_bleu,
)
from nmtkit.scoring.config import TOKENIZATIONS

HYPOTHESES = ["Ein Hund läuft (schnell).", "Zwei Männer reden, sie lachen.", ""]
REFERENCES = ["Ein Hund rennt schnell.", "Zwei Männer reden und lachen.", "Nichts."]


def moses_bleu(hypotheses: list[str], references: list[str], language: str, **variant: bool) -> Score:
    return score(moses_metric(language, **variant), hypotheses, [references])


def test_scores_match_sacrebleu() -> None:
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    found = bleu(HYPOTHESES, REFERENCES, "de")
    assert found.value == expected.score
    assert found.text.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    found = chrf(HYPOTHESES, REFERENCES)
    assert found.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert found.text.startswith("chrF2|nrefs:1|")


@pytest.mark.parametrize("resamples", [1, 20])
def test_the_line_of_a_score_is_formatted_as_by_sacrebleu(resamples: int) -> None:
    for metric, _ in published_metrics("de"):
        expected = metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=resamples)
        line = expected.format(signature=str(metric.get_signature()))
        assert score(metric, HYPOTHESES, [REFERENCES], resamples).text == line


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


def test_tokenized_bleu_never_matches_an_unknown_word_in_the_reference() -> None:
    sentence = "the <unk> dog runs over the street"
    other_word = sentence.replace("<unk>", "big")
    assert tokenized_bleu([sentence], [sentence]).value == tokenized_bleu([sentence], [other_word]).value < 100


@pytest.mark.parametrize(
    ("language", "tokenization"),
    [
        *[("ja", "char"), ("zh_TW", "zh"), ("zho_Hans", "zh"), ("cs", "13a"), ("kor_Hang", "13a")],
    ],
)
def test_languages_without_spaces_use_their_own_tokenization(language: str, tokenization: str) -> None:
    assert f"|tok:{tokenization}|" in bleu(["猫がいる。"], ["犬がいる。"], language).text


def test_moses_bleu_with_and_without_compounds_equals_a_count_by_hand() -> None:
    hypothesis, reference = "Ein E-Mail Konto ist da.", "Ein E-Mail-Konto ist da."
    # Ein E-Mail Konto ist da . | Ein E-Mail-Konto ist da .: 4 of 6, 2 of 5, 1 of 4, 0 of 3: without smoothing nothing
    assert moses_bleu([hypothesis], [reference], "de").value == 0
    # Ein E @-@ Mail Konto ist da . | Ein E @-@ Mail @-@ Konto ist da .: 8 of 8, 6 of 7, 4 of 6, 2 of 5
    expected = 100 * math.exp(1 - 9 / 8) * (8 / 8 * 6 / 7 * 4 / 6 * 2 / 5) ** 0.25
    split = moses_bleu([hypothesis], [reference], "de", split_compounds=True)
    assert split.value == pytest.approx(expected)
    assert split.text.startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:moses-de-compounds|smooth:none|version:")


def test_plain_quotes_makes_all_kinds_of_quotes_equal() -> None:
    hypothesis, reference = 'Er sagte: "Ja, morgen."', "Er sagte: „Ja, morgen.“"
    # Er sagte : " Ja , morgen . " | Er sagte : „ Ja , morgen . “: 7 of 9, 5 of 8, 3 of 7, 1 of 6
    expected = 100 * (7 / 9 * 5 / 8 * 3 / 7 * 1 / 6) ** 0.25
    assert moses_bleu([hypothesis], [reference], "de").value == pytest.approx(expected)
    alike = moses_bleu([hypothesis], [reference], "de", plain_quotes=True)
    assert alike.value == pytest.approx(100)
    assert "|tok:moses-de-quotes|" in alike.text


def test_a_line_counts_as_correct_if_one_of_several_references_matches() -> None:
    others = ["Etwas ganz anderes.", *HYPOTHESES[1:]]
    texts = [HYPOTHESES[0], *REFERENCES[1:]]
    for metric in (sacrebleu_metric("13a"), moses_metric("de")):
        assert score(metric, texts, [others, [HYPOTHESES[0], *REFERENCES[1:]]]).value == pytest.approx(100)
        assert "|nrefs:2|" in score(metric, texts, [others, REFERENCES]).signature


def test_every_score_with_a_known_tokenization_is_computed() -> None:
    def names(language: str, tokenize: str | None = None) -> list[str]:
        metrics = published_metrics(language, tokenize)
        return [score(metric, HYPOTHESES, [REFERENCES]).signature.split("|")[4] for metric, _ in metrics]

    assert names("de") == ["tok:moses-de", "tok:moses-de-compounds", "tok:moses-de-compounds-quotes", "tok:13a", "nc:6"]
    assert names("de-AT") == names("de_CH") == names("DE") == names("deu_Latn") == names("de")
    assert names("fr") == ["tok:moses-fr", "tok:moses-fr-compounds", "tok:13a", "nc:6"]
    assert names("zh_TW") == ["tok:zh", "nc:6"]
    assert names("cs", "intl") == ["tok:intl", "nc:6"]
    assert names("ja", "char") == names("th") == ["tok:char", "nc:6"]


def test_japanese_is_tokenized_by_mecab_unless_another_tokenization_is_chosen() -> None:
    pytest.importorskip("MeCab")
    metrics = [metric for metric, _ in published_metrics("ja")]
    assert "|tok:ja-mecab-" in score(metrics[0], ["猫がいる。"], [["犬がいる。"]]).signature


def test_a_tokenization_that_is_not_installed_is_refused_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"ja-mecab is not installed: pip install 'sacrebleu\[ja\]', or use --tokenize"):
        list(published_metrics("ja"))


def test_a_tokenizer_model_that_cannot_be_downloaded_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(metric: BLEU, **settings: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(BLEU, "__init__", offline)
    with pytest.raises(RunError, match=r"^cannot download or read .*flores200: no route to host; .*different tokeniz"):
        sacrebleu_metric("flores200")


def test_all_tokenizations_of_sacrebleu_can_be_chosen() -> None:
    assert set(TOKENIZATIONS) == set(BLEU.TOKENIZERS) - {"spm"}  # the former name of flores101
