"""Lines in capitals: the translation of the running text, in capitals, and nothing of the line lost."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig, StreamConfig
from nmtkit.decoding.recasing import Recasing
from nmtkit.decoding.requests import Glossary, Request
from nmtkit.text.casing import capitalize_words, capitals_of, running_text
from nmtkit.text.markup import parse, render
from nmtkit.text.segment import Kind, Segment, Tag

SEARCH, TITLE = SearchConfig(beam=2, min_len=3, max_len_b=6), StreamConfig(recase="title")


@pytest.fixture(scope="module")
def translator(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    return Translator.of([make_checkpoint(5)], EngineConfig(device="cpu", precision="fp32"), languages=("en", "de"))


@pytest.mark.parametrize("batches", [TITLE, StreamConfig(recase="title", split_sentences=True)])
def test_a_line_in_capitals_is_translated_as_running_text(batches: StreamConfig, translator: Translator) -> None:
    running, capitals = "A dog runs. The cat sleeps!", "A DOG RUNS. THE CAT SLEEPS!"
    plain, upper, title = translator.stream([running, capitals, "A Dog Runs. The Cat Sleeps!"], SEARCH, batches)
    assert plain.text.strip()
    assert (upper.text, title.text.lower()) == (plain.text.upper(), plain.text.lower())
    assert upper.source == capitals
    assert upper.candidates[0].tokens == plain.candidates[0].tokens


USUAL = ["A dog runs.", "NATO", "NHKは会議を開いた。", "नासा NASA ने कहा", "Peter Müller", "12 €", "", "犬が走る。"]


@pytest.mark.parametrize("line", [*USUAL, Request("A DOG RUNS.", prefix="Ein")])
def test_other_lines_stay_as_they_are(line: str | Request, translator: Translator) -> None:
    assert [*translator.stream([line], SEARCH, TITLE)] == [*translator.stream([line], SEARCH)]


def test_turkish_stays_as_it_is(translator: Translator) -> None:
    turkish = Translator(translator.model, translator.source, translator.target, languages=("tr", "en"))
    assert [*turkish.stream(["KIRMIZI KEDI"], SEARCH, TITLE)] == [*turkish.stream(["KIRMIZI KEDI"], SEARCH)]


def test_tags_and_protected_text_keep_their_own_bytes(translator: Translator) -> None:
    name = Tag(Kind.ALONE, "", text="{name}")
    running, capitals = (parse(text) for text in ("The <b id=x>dog</b> runs.", "THE <b id=x>DOG</b> RUNS."))
    requests = map(Request.of, (running, capitals, Segment(("DOGS RUN ", name))))
    both = [each.segment for each in translator.stream(requests, SEARCH, TITLE)]
    assert render(both[1]) == render(both[0]).upper().replace("<B ID=X>", "<b id=x>").replace("</B>", "</b>")
    assert "{name}" in both[2].plain


def test_protected_text_inside_words_is_capitalized() -> None:
    segment = Segment(("PRESS ", Tag(Kind.ALONE, "", text="a"), " TO RUN"))
    recasing = Recasing.of(Request.of(segment), "upper", ())
    assert recasing
    assert recasing.restored("Drücke a, um im Gras zu rennen") == "DRÜCKE a, UM IM GRAS ZU RENNEN"


def test_terms_of_a_glossary_are_found_in_capitals(translator: Translator) -> None:
    request = Request("A DOG FROM THE EU RUNS.", glossary=Glossary({"EU": "Hund"}))
    assert [*translator.stream([request], SEARCH, TITLE)] == [*translator.stream([request], SEARCH)]


@given(st.text(st.characters(categories=["L", "P", "Z", "M"])))
def test_running_text_keeps_each_character_but_its_case(text: str) -> None:
    running = running_text(text)
    assert len(running) == len(text)
    assert all(new in (old, *old.lower(), "ς") for new, old in zip(running, text, strict=True))


def test_greek_words_in_capitals_end_in_a_final_sigma() -> None:
    assert running_text("Ο ΚΟΣΜΟΣ. ΝΑΙ") == "Ο κοσμος. Ναι"
    assert capitals_of("ΚΟΣΜΟΣ", title=False) is str.upper


def test_headlines_keep_acronyms_and_may_have_short_words() -> None:
    assert running_text("NASA Launches a New Mars Rover") == "NASA launches a new mars rover"
    assert capitals_of("A Man in a Blue Shirt Is Standing", title=True) is capitalize_words
    assert capitals_of("Two Dogs Run and the cats sleep", title=True) is None
