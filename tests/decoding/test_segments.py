"""Segments with inline tags through a model: every tag once, nested, and the text of a translation without tags."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, MarkupConfig, SearchConfig, StreamConfig
from nmtkit.decoding.markup import stream_markup
from nmtkit.decoding.placement import SegmentPlacement, piece_spans, units_of
from nmtkit.decoding.requests import Request
from nmtkit.decoding.search import Hypothesis
from nmtkit.decoding.tasks import SentenceEncoder, SourceLimit
from nmtkit.decoding.translation import Translation
from nmtkit.errors import UserError
from nmtkit.text.document_formats import guess
from nmtkit.text.markup import parse, render
from nmtkit.text.segment import Kind, Segment, Tag, protect
from nmtkit.text.tokenizer import Tokenizer

SEARCH, SPLIT = SearchConfig(beam=2, min_len=3, max_len_b=6), StreamConfig(split_sentences=True)
SEED = 5  # of a model that answers with words
WORDS = ["the dog", "A cat runs. ", " ", "12 €. ", "Die Straße", "läuft! ", "犬。", "☃", ", ", "A"]


@pytest.fixture(scope="module")
def translator(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    return Translator.of([make_checkpoint(SEED)], EngineConfig(device="cpu", precision="fp32"))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> str:
    """Random inline markup, each tag with a number of its own."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "text", "pair", "alone"] if depth else ["text", "alone"]))
        number = draw(st.integers(0, 10**6))
        if kind == "text":
            parts.append(draw(st.sampled_from(WORDS)))
        elif kind == "alone":
            parts.append(f"<img id={number}>")
        else:
            parts.append(f"<b id={number}>{draw(trees(depth - 1))}</b>")
    return "".join(parts)


@pytest.mark.parametrize("batches", [SPLIT, StreamConfig(), StreamConfig(max_source_tokens=4, overlong="split")])
@settings(deadline=None)
@given(tagged=st.lists(trees(), min_size=1, max_size=4))
def test_every_tag_occurs_once_nested_around_the_translation_of_the_text(
    batches: StreamConfig, tagged: list[str], translator: Translator
) -> None:
    segments = [parse(text) for text in tagged]
    plain = translator.stream([segment.text for segment in segments], SEARCH, batches)
    translations = translator.stream(map(Request.of, segments), SEARCH, batches)
    for segment, translation, expected in zip(segments, translations, plain, strict=True):
        assert Counter(tags(translation.segment)) == Counter(tags(segment))
        assert is_nested(translation.segment)
        assert "".join(translation.segment.text.split()) == "".join(expected.text.split())


def tags(segment: Segment) -> list[Tag]:
    return [part for part in segment.parts if isinstance(part, Tag)]


def is_nested(segment: Segment) -> bool:
    opened: list[Tag] = []
    for tag in tags(segment):
        if tag.kind is Kind.OPEN:
            opened.append(tag)
        elif tag.kind is Kind.CLOSE and (not opened or opened.pop().name != tag.name):
            return False
    return not opened


@pytest.mark.parametrize(
    "tagged",
    [
        "the <b>dog</b> runs. A <i>cat <b>runs</b></i>!",
        "the dog. <b>12 €.</b> The <i>dog</i> runs. <b>3</b>",  # copied without a task
        "<b>the dog runs.</b> A cat.",
        "the dog<img/>, a <u>street</u>.",
        "die <b>straße</b> ☃ the <i>dog</i>",  # ☃ in byte pieces
        "<b>犬</b>は<i>走</i>る。",
    ],
)
def test_the_identity_with_attention_to_itself_returns_the_segment(tagged: str, tokenizer: Tokenizer) -> None:
    encoder = SentenceEncoder(tokenizer, tokenizer, None, ("en", "de"))
    limit = SourceLimit.of(SPLIT, None, pass_through=True)
    (sentence,) = encoder.sentences([Request.of(parse(tagged))], limit, 1)
    sources = [task.source[:-1] for task in sentence.tasks]
    found = [Hypothesis(ids, 0.0, [], np.eye(len(ids) + 1, dtype=np.float32)) for ids in sources]
    placement = SegmentPlacement(parse(tagged), sentence, tokenizer)
    texts = [tokenizer.decode(ids) for ids in sources]
    assert render(placement.place(found, texts, tokenizer)) == tagged


def test_pieces_are_found_in_text_that_the_tokenizer_changes() -> None:
    text = "５½ m²  a\xadb ☃x"
    surfaces = [" 5", "5", " 1⁄2", " m", "2", " ", "ab", " ⁇ ", "x"]
    found = [text[a:b].strip() for a, b in piece_spans(surfaces[:1] + surfaces[2:], text)]
    assert found == ["５", "½", "m", "²", "a\xadb", "a\xadb", "☃", "x"]
    assert [text[a:b] for a, b in piece_spans([" ５"], text)] == ["５"]


def test_units_are_words_that_a_piece_joins_or_pieces_of_scripts_without_spaces() -> None:
    text = "It's «a». 犬が"
    pieces = [(0, 2), (2, 4), (5, 7), (7, 9), (10, 11), (11, 12)]
    assert [text[a:b] for a, b in units_of(text, pieces)] == ["It", "'s", "«a", "».", "犬", "が"]


def test_no_sentence_ends_inside_protected_text(tokenizer: Tokenizer) -> None:
    encoder, limit = SentenceEncoder(tokenizer, tokenizer, None, ("en", "de")), SourceLimit.of(SPLIT, None)
    segment = parse("The dog. The dog runs. A cat!\nThe dog. A cat.")
    for pattern, parts in (("runs. A|$", 4), ("runs", 5), ("dog. A", 4)):
        protected = protect(segment, re.compile(pattern))
        (sentence,) = encoder.sentences([Request.of(protected)], limit, 1)
        assert len(sentence.tasks) == parts


def test_lines_with_markup_have_the_tags_of_the_line_and_the_text_of_the_lines_without(translator: Translator) -> None:
    lines = ["<p>the <b>dog</b></p><p>a cat</p>", "", "  <i>12 €</i> ", "die &amp; <code>der hund</code>", "<br>"]
    html = translator.translate(lines, markup="html", beam=2)
    assert [re.findall("<.*?>", line) for line in html] == [re.findall("<.*?>", line) for line in lines]
    dog, cat = translator.translate(["the dog", "a cat"], beam=2)
    assert re.sub("<.*?>", "", html[0]) == escape(dog + cat)
    assert html[1:3] + html[4:] == lines[1:3] + lines[4:]
    assert "<code>der hund</code>" in html[3]
    xml = translator.translate(
        ["a <x id='1'/> <k>cat</k>"], markup=MarkupConfig(markup="xml", ignore_tags="k, l"), beam=2
    )
    assert re.findall("<x id='1'/>|<k>cat</k>", xml[0]) == ["<x id='1'/>", "<k>cat</k>"]


def test_lines_that_are_done_are_not_translated_again(translator: Translator) -> None:
    lines = [["<b>the dog</b>", "a cat"], ["the <i>street</i>", "", "12"]]
    whole = [each.text for each in translator.stream_markup(lines, MarkupConfig(markup="html"), SEARCH)]
    for done in range(6):
        rest = translator.stream_markup(lines, MarkupConfig(markup="html"), SEARCH, done=done)
        assert [each.text for each in rest] == whole[done:]
    asked = list[Request]()

    def stream(chunks: Iterable[Sequence[Request]]) -> Iterator[Translation]:
        for chunk in chunks:
            asked.extend(chunk)
            yield from translator.stream(chunk, SEARCH)

    assert [each.text for each in stream_markup(lines, MarkupConfig(markup="html"), stream, 3)] == whole[3:]
    assert [request.text for request in asked] == ["the street", "", ""]  # not the chunk that is done


def test_a_model_without_attention_puts_pairs_around_everything(
    make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    translator = Translator.of([make_checkpoint(SEED)], EngineConfig(device="cpu", precision="fp32"))
    monkeypatch.setattr(translator.model, "attention_layers", 0)
    (translation,) = translator.stream([Request.of(parse("the <b>dog</b> runs"))], SEARCH)
    assert re.fullmatch("<b>.+</b>", render(translation.segment))
    assert "1 line with tags around the whole text" in caplog.text


def test_options_of_markup_are_checked(translator: Translator) -> None:
    with pytest.raises(UserError, match="--protect '\\(' is not a regular expression"):
        MarkupConfig(protect=("(",))
    with pytest.raises(UserError, match="omit nbest"):
        translator.translate(["a"], markup="html", nbest=2)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("lines", "option"),
    [
        (["<!DOCTYPE html>", "<title>a</title>", "b", "c"], "--document html"),
        (["A <b>dog</b> runs.", "", "A <i>cat</i>."], "--markup html"),
        (["1", "00:00:01,000 --> 00:00:02,000", "a dog"], "--document srt"),
        (["id\ttext", "1\ta dog", "2\ta cat"], "--document tsv"),
        (["id,text", '1,"a dog, a cat"', "2,a cat"], "--document csv"),
        (["id;text", "1;a", "2;b"], "--document csv"),
        (["First, a dog.", "Then, a cat.", "So, a man."], None),
        (["a < b and c > d", "1 --> 2", "", "A dog."], None),
        ([], None),
    ],
)
def test_text_that_looks_like_a_document_is_recognised(lines: list[str], option: str | None) -> None:
    found = guess(lines)
    assert (found is None) == (option is None)
    assert found is None or found[1].startswith(str(option))
