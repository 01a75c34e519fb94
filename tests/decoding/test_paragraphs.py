"""Lines of several sentences: each is translated separately, and nothing around them changes."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.overlong import join
from nmtkit.decoding.requests import Glossary, Request
from nmtkit.decoding.tasks import SentenceEncoder, SourceLimit
from nmtkit.decoding.translation import Translation
from nmtkit.text.tokenizer import Tokenizer

SEARCH, SPLIT = SearchConfig(beam=2, min_len=2, max_len_b=3), StreamConfig(split_sentences=True)
SEED = 5  # of a model that answers these sentences with words
PARAGRAPH = "  The dog runs. A cat runs!  12 €\n\nThe street.\r\n"


@pytest.fixture(scope="module")
def translator(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    return Translator.of([make_checkpoint(SEED)], EngineConfig(device="cpu", precision="fp32"))


def test_a_paragraph_is_translated_like_its_sentences_and_keeps_what_is_around_them(translator: Translator) -> None:
    dog, cat, street = translator.translate(
        ["The dog runs.", "A cat runs!", "The street."], beam=2, min_len=2, max_len_b=3
    )
    found, blank = translator.stream([PARAGRAPH, "  "], SEARCH, SPLIT)
    assert found.text == f"  {join([dog, cat])}  12 €\n\n{street}\r\n"
    assert blank.text == "  "
    assert len(found.candidates[0].tokens) == len(found.candidates[0].token_log_probs)


def test_lines_of_a_text_are_translated_separately_in_any_case(translator: Translator) -> None:
    lines = ["The dog runs. A cat", "", "a street"]
    assert translator.translate(["\n".join(lines)], beam=2) == ["\n".join(translator.translate(lines, beam=2))]


def test_the_alignment_of_a_paragraph_is_that_of_its_sentences(translator: Translator) -> None:
    search = replace(SEARCH, alignment=True)
    (whole,) = translator.stream(["The dog runs. A street! A cat."], search, SPLIT)
    expected, before = list[tuple[int, int]](), list[Translation]()
    for part in translator.stream(["The dog runs.", "A street!", "A cat."], search):
        sources = sum(len(other.source.split()) for other in before)
        targets = len(join([other.text for other in before]).split())
        expected += [(i + sources, j + targets) for i, j in part.candidates[0].alignment or () if part.text.strip()]
        before.append(part)
    assert whole.candidates[0].alignment == tuple(expected)


def test_terms_of_a_glossary_are_required_in_the_sentence_that_has_them(tokenizer: Tokenizer) -> None:
    encoder = SentenceEncoder(tokenizer, tokenizer, None, ("en", "de"))
    request = Request("The dog. A cat.", glossary=Glossary({"cat": "katze", "dog": "hund"}))
    (sentence,) = encoder.sentences([request], SourceLimit.of(SPLIT, None), 1)
    terms = [[tokenizer.decode(spelling) for (spelling,) in task.constraints.terms] for task in sentence.tasks]
    assert terms == [["hund"], ["katze"]]


def test_a_tag_of_the_line_precedes_each_sentence_and_long_sentences_are_split(tokenizer: Tokenizer) -> None:
    encoder = SentenceEncoder(tokenizer, tokenizer, None, ("en", "de"))
    limit = SourceLimit.of(StreamConfig(split_sentences=True, overlong="split", max_source_tokens=12), None)
    (sentence,) = encoder.sentences([Request("the dog. " + "a cat " * 20)], limit, 1)
    assert [id for task in sentence.tasks for id in task.source[:-1]] == sentence.ids
    assert len(sentence.frame) == len(sentence.tasks) + 1 > 3
    assert sentence.overlong == "split"


def test_the_script_of_the_translation_decides_about_a_single_space() -> None:
    assert join(["犬が走る。", "猫。"], ["", " ", "\n"]) == "犬が走る。猫。\n"
    assert join(["A dog runs.", "A cat."], ["", "", ""]) == "A dog runs. A cat."
    assert join(["A dog runs.", "A cat."], ["\t", "\n\n", ""]) == "\tA dog runs.\n\nA cat."


def test_a_warning_names_the_option_if_more_than_a_few_lines_have_several_sentences(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["The dog runs. A cat runs.", *["the dog"] * 40]
    with caplog.at_level(logging.WARNING):
        for batches in (StreamConfig(), SPLIT):
            list(translator.stream(lines, SEARCH, batches))
        list(translator.stream([*lines, *lines[1:]], SEARCH))
    (warning,) = (message for message in caplog.messages if "several sentences" in message)
    assert "1 line with several sentences" in warning
    assert "--split-sentences" in warning
