"""Stand-ins: protected text and words that the vocabulary cannot spell occur exactly once in translations."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from nmtkit.decoding.config import EngineConfig, MarkupConfig, SearchConfig, StreamConfig
from nmtkit.decoding.engine import SearchBatch
from nmtkit.decoding.requests import Request
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.stand_ins import StandIns, once
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.segment import Kind, Segment, Tag
from nmtkit.text.spm_training import train_sentencepiece
from nmtkit.text.tokenizer import SentencePieceTokenizer
from nmtkit.text.user_symbols import PLACEHOLDERS

WORDS = ["the", "dog", "a", "cat", "runs", "hund", "katze", "läuft", "Maria", "Anna", "x", "."]
PROTECTED = ["{name}", "{{ x }}", "%s", "https://a.b/c?d=1"]
UNKNOWN = ["★", "😀", "👩\u200d👧", "Москва", "犬", "£", "—"]
MARKUP = MarkupConfig(protect=(r"\{.+?\}+", "%s", r"https?://\S+"))


def make_tokenizer(user_symbols: tuple[str, ...] = (), words: Sequence[str] = WORDS) -> SentencePieceTokenizer:
    generator = random.Random(1)
    text = [" ".join(generator.choices(words, k=6)) for _ in range(200)]
    return SentencePieceTokenizer(
        train_sentencepiece(
            text,
            vocab_size=60 + len(user_symbols),
            model_type="bpe",
            character_coverage=1.0,
            byte_fallback=False,
            threads=1,
            user_symbols=user_symbols,
        )
    )


def make_checkpoint(tokenizer: SentencePieceTokenizer) -> Checkpoint:
    config = TransformerConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=32, heads=2)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Transformer(config, len(tokenizer.vocab), len(tokenizer.vocab))
    return Checkpoint(config, as_arrays(collect_weights(model)), "en", "de", tokenizer, tokenizer)


@pytest.fixture(scope="module", params=[(), PLACEHOLDERS], ids=["names", "symbols"])
def translator(request: pytest.FixtureRequest) -> Translator:
    checkpoint = make_checkpoint(make_tokenizer(request.param))
    return Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))


@pytest.mark.parametrize("batches", [StreamConfig(), StreamConfig(max_source_tokens=5, overlong="split")])
@settings(max_examples=40, deadline=None)  # the first search of a process takes longer
@given(st.lists(st.lists(st.sampled_from([*WORDS, *PROTECTED, *UNKNOWN]), max_size=8), min_size=1, max_size=3))
def test_every_span_of_random_lines_occurs_as_often_as_in_the_source(
    batches: StreamConfig, translator: Translator, lines: list[list[str]]
) -> None:
    texts = [" ".join(words) for words in lines]
    search = SearchConfig(beam=2, max_len_b=8)
    found = list(translator.stream_markup([texts], MARKUP, search, batches))
    assert [each.source for each in found] == texts
    for words, translation in zip(lines, found, strict=True):
        for span in (*PROTECTED, *UNKNOWN):
            assert translation.text.count(span) == words.count(span), (span, words, translation.text)
        assert not re.search("⁇|<ph", translation.text)


def test_unknown_words_of_plain_lines_are_copied_without_bytes_and_counted(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["  the dog ★ runs ", "Москва", "a cat", "12 😀", "the dog😀"]
    with caplog.at_level("WARNING"):
        texts = translator.translate(lines, beam=2, max_len_b=8)
    assert [Counter(re.findall("[★😀]|Москва", text)) for text in texts] == [
        Counter(re.findall("[★😀]|Москва", line)) for line in lines
    ]
    assert texts[1] == lines[1]
    (translation,) = translator.stream(lines[:1], SearchConfig(beam=2))
    assert translation.source == lines[0]
    assert translation.candidates[0].segment is None
    assert "4 lines with copied words" in caplog.text
    assert "--byte-fallback" in caplog.text
    assert "--character-coverage" in caplog.text


def test_words_with_known_letters_and_lines_that_may_be_unknown_are_left_to_the_model(translator: Translator) -> None:
    stand_ins = StandIns(translator.source, translator.target)
    for text in ("caté", "the «dog»", "a cat"):
        assert stand_ins.of(Request(text), copies=True).segment is None
    assert stand_ins.of(Request("the ★"), copies=False).segment is None


def test_stand_ins_differ_from_the_words_of_the_line_and_touch_no_letter() -> None:
    tokenizer = make_tokenizer()
    segment = Segment(("maria ", span("a"), " x", span("b"), " ", span("★"), " ", span("c")))
    request = StandIns(tokenizer, tokenizer).of(Request.of(segment), copies=False)
    assert request.text == "maria Anna xb ★ Martin"  # other names have unknown letters
    symbols = make_tokenizer(PLACEHOLDERS)
    request = StandIns(symbols, symbols).of(Request.of(segment), copies=False)
    assert request.text == "maria <ph1> xb <ph2> <ph3>"


def span(text: str) -> Tag:
    return Tag(Kind.ALONE, "", text=text)


def test_repeated_stand_ins_and_their_endings_are_dropped() -> None:
    texts = ["Marias Hund, Mariannes und Maria-Tag.", "Mariaは <ph1> <ph2> und Annas, Maria"]
    with_symbols, without = make_tokenizer(PLACEHOLDERS).vocab, make_tokenizer().vocab
    segment = Segment((replace(span("★"), sent="Maria"), replace(span("☆"), sent="<ph1>")))
    assert once(texts, segment, with_symbols) == ["Maria Hund, Mariannes und Tag.", "は <ph1> und Annas,"]
    assert once(texts, None, without) == texts


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Anna", "{}"),
        ("Annas", "{}"),
        ("Anna's", "{}"),
        ("Annahund", "{}"),
        ("Anna-KW", "{} KW"),
        ("die-Anna-x-hund", "die {} x-hund"),
    ],
)
def test_no_ending_and_no_compound_of_a_stand_in_touches_the_protected_text(
    word: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, kept = "the dog https://a.b/c?d runs", expected.format("https://a.b/c?d")
    assert answered(line, f"der {word} läuft .", monkeypatch) == f"der {kept} läuft ."
    assert answered(line, f"der hund läuft {word}.", monkeypatch) == f"der hund läuft {kept}."


def test_a_hyphen_of_the_source_stays_next_to_the_protected_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered("the {name}-dog runs", "der Anna-hund läuft", monkeypatch) == "der {name}-hund läuft"


def answered(line: str, output: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The translation of a line by a model that answers with `output`, and attends to its source word by word."""
    tokenizer = make_tokenizer(words=[*WORDS, *"-'KWd"])
    (ids,) = tokenizer.encode([output])

    def search(model: object, batch: SearchBatch, *_: object) -> list[list[Hypothesis]]:
        shapes = [(len(ids) + 1, len(source)) for source in batch.sources]
        return [[Hypothesis(ids, 0.0, [0.0] * len(ids), np.eye(*shape, dtype=np.float32))] for shape in shapes]

    monkeypatch.setattr("nmtkit.decoding.engine.search_batch", search)
    translator = Translator.of([make_checkpoint(tokenizer)], EngineConfig(device="cpu", precision="fp32"))
    return translator.translate([line], markup=MARKUP)[0]


@pytest.mark.parametrize("rule", [True, False, None])
def test_a_checkpoint_stores_whether_outputs_may_be_unknown(rule: bool | None, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(make_tokenizer())
    checkpoint.search = {} if rule is None else {"allow_unknown": rule}
    save_checkpoint(tmp_path / "a.pt", checkpoint)
    loaded = load_checkpoint(tmp_path / "a.pt")
    assert loaded.search.get("allow_unknown") is rule
    translator = Translator.of([loaded], EngineConfig(device="cpu"))
    (plain,) = translator.translate(["the ★"], beam=2, max_len_b=8)
    (allowed,) = translator.translate(["the ★"], beam=2, max_len_b=8, allow_unknown=True)
    assert "★" in translator.translate(["the ★"], beam=2, max_len_b=8, allow_unknown=False)[0]
    assert "★" not in allowed
    assert ("★" in plain) == (not rule)
