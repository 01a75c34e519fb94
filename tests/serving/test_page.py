"""The page that nmt-serve shows, in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, programs
from running_server import SEARCH, Server

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.config import ImportConfig
from nmtkit.conversion.importers import find_importer
from nmtkit.decoding.config import SearchConfig

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.skipif(programs() is None, reason="chromium and chromedriver are not installed")

LINES = ["the dog runs on the street", "", "eine katze"]


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[Server]:
    running = Server(tiny_checkpoint, "--no-repetition-guard")
    yield running
    if running.process.poll() is None:
        running.end()


def test_a_typed_text_is_translated_and_hovering_shows_word_alignments(
    server: Server, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    expected = list(translator.stream(LINES, SearchConfig(beam=3, max_len_b=3, alignment=True)))
    with Browser(tmp_path) as browser:
        browser.open(server.address)
        browser.wait_for("body[data-source]")
        assert browser.texts("h1 > :not([hidden])") == ["English to German"]
        browser.type("#text", "\n".join(LINES))
        browser.click("#button")
        browser.wait_for("#output .target")
        assert browser.texts(".target") == [translation.text for translation in expected]
        assert browser.texts(".source") == LINES
        for line, side in ((0, "target"), (0, "source"), (2, "target")):
            own, other = (1, 0) if side == "target" else (0, 1)
            pairs = expected[line].candidates[0].alignment or ()
            number = pairs[0][own]
            partners = {pair[other] for pair in pairs if pair[own] == number}
            browser.hover(f'[data-line="{line}"][data-side="{side}"][data-number="{number}"]')
            marked = "return [...document.querySelectorAll(arguments[0])].map(e => [e.dataset.line, e.dataset.number])"
            assert browser.run(marked, ".here") == [[str(line), str(number)]]
            assert {tuple(place) for place in browser.run(marked, ".there")} == {
                (str(line), str(partner)) for partner in partners
            }
        browser.hover("h1")
        assert browser.texts(".here, .there") == []


def test_the_page_offers_the_pairs_of_several_models(
    tiny_checkpoint: Path, make_checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "other.pt", make_checkpoint(3))
    models = {"en-de": tiny_checkpoint, "de-en": tmp_path / "other.pt"}
    texts = {}
    server = Server(models, "--no-repetition-guard")
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.address)
        for number, title in enumerate(("English to German", "German to English")):
            browser.wait_for("#pair:not([hidden]) option:nth-child(2)")
            browser.run("source.selectedIndex = arguments[0]; source.onchange(); output.replaceChildren()", number)
            assert browser.run("return document.title") == title
            browser.run("text.value = arguments[0]; translate()", LINES[0])
            browser.wait_for("#output .target")
            (texts[title],) = browser.texts(".target")
    server.end()
    expected = [
        Translator.from_checkpoint(path, device="cpu", precision="fp32").translate(LINES[:1], **SEARCH)[0].split()
        for path in models.values()
    ]
    assert [text.split() for text in texts.values()] == expected
    assert expected[0] != expected[1]


def test_the_page_offers_the_languages_of_a_multilingual_model(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    folder = Path(__file__).parents[1] / "conversion" / "foreign" / "nllb"
    save_checkpoint(tmp_path / "nllb.pt", find_importer(folder).read(folder, ImportConfig()))
    server = Server(tmp_path / "nllb.pt", "--source-lang", "en", "--target-lang", "de")
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.address)
        browser.wait_for("#pair:not([hidden]) option:nth-child(200)")
        assert browser.run("return [source.value, target.value, target.length]") == ["eng_Latn", "deu_Latn", 201]
        browser.run("target.value = 'fra_Latn'; target.onchange(); text.value = arguments[0]; translate()", LINES[0])
        browser.wait_for("#output .target")
        (found,) = browser.texts(".target")
        assert browser.run("return output.querySelector('.target').lang") == "fra-Latn"
    server.end()
    translator = Translator.from_checkpoint(
        tmp_path / "nllb.pt", source_lang="en", target_lang="fr", device="cpu", precision="fp32"
    )
    assert found.split() == translator.translate(LINES[:1], **SEARCH)[0].split()


def test_words_changed_by_normalization_are_shown_as_typed(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(server.address)
        browser.run("document.querySelector('#text').value = 'the\\u200bdog\\u001c\\u2460 runs'")
        browser.click("#button")
        browser.wait_for("#output .source")
        words = "return [...document.querySelectorAll('.source .word')].map(e => [e.textContent, e.dataset.number])"
        assert browser.run(words) == [["the\u200bdog", "0"], ["\u2460", "1"], ["runs", "2"]]


def test_the_page_fits_a_phone_and_shows_errors(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path, phone=True, dark=True) as browser:
        browser.open(server.address)
        browser.type("#text", f"{LINES[0]} {'dog' * 40}")
        browser.click("#button")
        browser.wait_for("#output .target")
        assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
        assert browser.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        browser.click("#output .word")
        assert len(browser.texts(".here")) == 1
        browser.run("document.querySelector('#text').value = 'a dog\\n'.repeat(10000)")
        browser.click("#button")
        browser.wait_for("#status.bad")
        assert browser.texts("#status") == ["10001 lines are too many: the limit is 10000"]
        browser.run("realFetch = fetch; fetch = async () => new Response('<html>too large</html>', {status: 413})")
        browser.click("#button")
        browser.wait_for("#status.bad")
        assert browser.texts("#status") == ["No translation: status 413."]
        browser.run("fetch = realFetch")
        server.end()
        browser.run("document.querySelector('#text').value = 'a dog'")
        browser.click("#button")
        browser.wait_for("#status.bad")
        assert browser.texts("#status") == ["The server does not answer."]
