"""What is asked for beside a line: prefixes, scores of given translations, the files and the glossary."""

import re
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from log_messages import without_cut_outputs

from nmtkit import Request, Translator
from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import EngineConfig, RequestConfig, SearchConfig
from nmtkit.decoding.requests import Glossary, RequestFiles
from nmtkit.errors import UserError
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS, Vocabulary

SEARCH = SearchConfig(beam=3, nbest=3, max_len_b=4)
LINES = ["the dog runs on the street", "", "a cat", "die katze läuft"]


@pytest.fixture(scope="module")
def translator(tiny_checkpoint: Path) -> Translator:
    return Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")


@pytest.fixture
def short(make_checkpoint: Callable[..., Checkpoint]) -> Translator:
    """A translator of the words w0, w1, …, with positions for 8 tokens."""
    checkpoint = make_checkpoint(positions="learned", max_positions=9)
    words = Vocabulary([*SPECIALS, *(f"w{n}" for n in range(len(checkpoint.source.vocab) - len(SPECIALS)))])
    checkpoint.source = checkpoint.target = SpaceTokenizer(words)
    return Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))


# Scores ----------------------------------------------------------------------------------------------------------


def test_the_translator_scores_text(translator: Translator) -> None:
    targets = ["der hund", "", "eine katze läuft", "cat"]
    scores = translator.score(LINES, targets, length_penalty=0)
    assert scores[1] == 0.0
    assert all(score < 0 for score in scores[:1] + scores[2:])
    requests = [Request(line, target=target) for line, target in zip(LINES, targets, strict=True)]
    for translation, target, own in zip(translator.stream(requests), targets, scores, strict=True):
        assert translation.text == target
        assert sum(translation.candidates[0].token_log_probs) == pytest.approx(own, rel=1e-5)
    (blank_target,) = translator.score(["a cat"], [""])
    (blank_source,) = translator.score([""], ["eine katze"])
    assert blank_target < 0
    assert blank_source < 0


def test_a_target_longer_than_the_positions_is_refused_with_its_line_number(short: Translator) -> None:
    refused = "--score: the translation of line {} has 9 tokens, but the model has positions for 8: shorten it"
    with pytest.raises(UserError, match=f"^{refused.format(2)}$"):
        short.score(["w1", "w2"], ["w3 " * 8, "w4 " * 9])
    chunks = [[Request("w1", target="w2 " * length) for length in lengths] for lengths in ((1, 1), (8, 1, 9))]
    with pytest.raises(UserError, match=f"^{refused.format(14)}$"):
        list(short.stream_chunks(chunks, SEARCH, done=3, first_line=10))


# Prefixes --------------------------------------------------------------------------------------------------------


def test_a_prefix_longer_than_the_positions_is_truncated(short: Translator) -> None:
    requests = [Request("w0", prefix=f"w{length} " * length) for length in (9, 8, 7, 20)]
    translations = list(short.stream(requests, SEARCH))
    assert [translation.candidates[0].tokens for translation in translations[:2]] == [
        ("w9",) * 8 + (SPECIALS[EOS],),
        ("w8",) * 8 + (SPECIALS[EOS],),
    ]
    assert translations[2].text.startswith("w7 " * 6 + "w7")
    assert translations[3].text == "w20 " * 7 + "w20"


def test_a_prefix_without_pieces_in_the_vocabulary_gives_a_warning(
    make_checkpoint: Callable[..., Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = make_checkpoint()
    words = Vocabulary([*SPECIALS, *(f"w{n}" for n in range(len(checkpoint.source.vocab) - 4))])
    checkpoint.source = checkpoint.target = SpaceTokenizer(words)
    translator = Translator.of([checkpoint], EngineConfig(device="cpu", precision="fp32"))
    requests: list[str | Request] = [
        Request("w1", prefix="w2 never"),
        Request("w2", prefix="w3"),
        Request("w3", prefix="seen"),
    ]
    assert translator.translate(requests, beam=2, max_len_b=3)[0].startswith("w2 <unk>")
    assert without_cut_outputs(caplog.messages) == [
        "2 lines with a prefix that the model has no pieces for: the output has unknown pieces instead"
    ]


def test_a_text_in_place_of_a_list_of_terms_is_refused() -> None:
    with pytest.raises(UserError, match="terms: a list of strings is expected, not 'Hund' alone"):
        Request("a dog", terms="Hund")  # type: ignore[arg-type]


# Files -----------------------------------------------------------------------------------------------------------


def attach(config: RequestConfig, *lines: str) -> list[str | Request]:
    chunks: list[list[str | Request]] = [list(lines[:2]), [Request(line) for line in lines[2:]]]
    return [request for chunk in RequestFiles(config).attach(chunks) for request in chunk]


def test_parallel_files_and_the_glossary_are_attached_to_the_lines(tmp_path: Path) -> None:
    (tmp_path / "prefix").write_text("Ein\n\n Das \n")
    (tmp_path / "terms").write_text("Hund\tder Katze\n\t\n\nx\n".replace("x\n", ""))
    (tmp_path / "glossary").write_text("dog\tHund\ncat\tKater\n")
    config = RequestConfig(tmp_path / "prefix", tmp_path / "terms", tmp_path / "glossary")
    requests = [one for one in attach(config, "a dog", "", "a cat and a dog") if isinstance(one, Request)]
    assert [(one.prefix, one.terms) for one in requests] == [("Ein", ("Hund", "der Katze")), ("", ()), ("Das", ())]
    glossary = requests[2].glossary
    assert glossary is not None
    assert glossary.terms(requests[2].text) == ["Kater", "Hund"]


def test_a_glossary_finds_whole_words_the_longest_first() -> None:
    glossary = Glossary({"dog": "Hund", "hot dog": "Hotdog", "cat": "Katze", "犬": "イヌ", "C++": "C++"})
    assert glossary.terms("a hot dog, a dog and dogs") == ["Hotdog", "Hund"]
    assert glossary.terms("concat cats Cat cat.") == ["Katze"]
    assert glossary.terms("大犬小") == ["イヌ"]
    assert glossary.terms("in C++ or C") == ["C++"]
    assert glossary.terms("bull@@ dog, dog@@ s and mad@@ dog@@ s, dog") == ["Hund"]  # segmented text
    assert Glossary({}).terms("a dog") == []


def test_any_white_space_in_a_line_or_a_glossary_matches_a_space(tmp_path: Path) -> None:
    (tmp_path / "glossary").write_text("hot  dog\tHot\u00a0Dog\nbig cat\u3000s\tx\n", encoding="utf-8")
    glossary = Glossary.read(tmp_path / "glossary")
    for space in (" ", "  ", "\t", "\u00a0", "\u3000", " \u202f"):
        assert glossary.terms(f"a hot{space}dog, big{space}cat{space}s{space}") == ["Hot Dog", "x"]


@hypothesis.given(
    entries=st.dictionaries(st.text("ab _", min_size=1, max_size=4).filter(str.strip), st.just("x"), max_size=6),
    text=st.text("ab _.", max_size=12),
)
def test_a_glossary_finds_the_same_terms_as_a_regular_expression(entries: dict[str, str], text: str) -> None:
    entries, text = {" ".join(term.split()): term.upper() for term in entries}, " ".join(text.split())
    longest_first = sorted(entries, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in longest_first) or "(?!)"
    assert Glossary(entries).terms(text) == [entries[term] for term in re.findall(pattern, text)]


@pytest.mark.parametrize(
    ("text", "words"), [("dog\n", "line 1"), ("a\tb\n\ndog\t\n", "line 3"), ("a\tb\na\tc\n", "'a'")]
)
def test_a_malformed_glossary_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "glossary").write_text(text)
    with pytest.raises(UserError, match=words):
        Glossary.read(tmp_path / "glossary")


def test_required_terms_that_other_options_forbid_are_dropped_with_a_warning(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[str | Request] = [Request("a dog", terms=("hund",)), "a cat", Request("the cat", terms=("katze",))]
    texts = translator.translate(requests, beam=2, max_len_b=3, ban=("hund",))
    plain = translator.translate(["a dog", "a cat"], beam=2, max_len_b=3, ban=("hund",))
    assert texts[:2] == plain
    assert "katze" in texts[2]
    assert without_cut_outputs(caplog.messages) == ["1 line translated without 1 required term: other options ban them"]


def test_with_ignore_case_a_required_term_may_have_a_different_case(translator: Translator) -> None:
    (plain,) = translator.translate(["a cat"])
    term = plain.split()[0].upper()
    assert term not in plain
    asked = [Request("a cat", terms=(term,))]
    assert term in translator.translate(asked)[0]
    (relaxed,) = translator.translate(asked, ignore_case=True)
    assert term.lower() in relaxed
    assert term not in relaxed


def test_a_warning_about_missing_terms_names_the_positions_if_they_are_the_cause(
    short: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [
        Request("w0", terms=("w1 w2 w3 w4 w5", "w6 w7 w8 w9")),
        Request("w0", terms=("w1 w2 w3 w4 w5", "w5 w6 w7 w8")),  # fit, since they overlap
        Request("w0", prefix="w1 w2 w3 w4", terms=("w5 w6 w7 w8 w9",)),
        Request("w0", terms=("w9",)),
        Request("w0", prefix="w1", terms=("w2 w3 w4 w5 w6 w7 w8",)),
    ]
    texts = short.translate(requests, beam=4, ban=("w9",))
    assert texts[1] == texts[4] == "w1 w2 w3 w4 w5 w6 w7 w8"
    assert without_cut_outputs(caplog.messages) == [
        "2 lines translated without 3 required terms: the model has positions for only 8 tokens",
        "1 line translated without 1 required term: other options ban them",
    ]


def test_a_glossary_can_ignore_case_and_knows_its_unused_terms() -> None:
    glossary = Glossary({"Dog": "Hund", "İx": "Y", "cat": "Katze"}, ignore_case=True)
    assert glossary.terms("a DOG, the dog and İX") == ["Hund", "Hund", "Y"]
    assert glossary.unused == {"cat"}
    assert Glossary({"Dog": "Hund"}).terms("a dog") == []
