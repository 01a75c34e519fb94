"""The filters of noisy pairs, one by one, and the marks that they give."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.dedup import normal_form
from nmtkit.preprocessing.filters import alphanumeric_share, enabled_filters, make_marker, url_share
from nmtkit.preprocessing.overlap import Overlap
from nmtkit.preprocessing.reasons import KEPT, MARKS, REASONS

# options, reason, and pairs: those that the filter drops, and those that it keeps
CASES: dict[str, tuple[dict[str, Any], str, list[tuple[str, str]], list[tuple[str, str]]]] = {
    "equal sides": (
        {"drop_identical": True},
        "identical",
        [("Berlin", "Berlin"), (" Berlin", "Berlin\r")],
        [("Berlin", "berlin")],
    ),
    "few characters": ({"min_chars": 3}, "characters", [("ab", "drei"), ("drei", " ab ")], [("abc", "abc")]),
    "many characters": ({"max_chars": 4}, "characters", [("abcde", "ab"), ("ab", "abcde")], [(" abcd ", "a c")]),
    "few words": ({"min_words": 2}, "words", [("one", "zwei Wörter")], [("two words", "zwei Wörter")]),
    "many words": ({"max_words": 2}, "words", [("a", "b c d")], [("a  b", "日本語の文です")]),
    "a ratio of characters": ({"max_char_ratio": 2}, "character ratio", [("abcde", "ab")], [("abcd", "ab")]),
    "repeated characters": (
        {"max_repeats": 3},
        "repetition",
        [("noooo", "nein"), ("was", "????"), ("____ name", "Name"), ("はははは", "ha")],
        [("nooo", "nein..."), ("1000000", "1000000"), ("a      b", "c")],
    ),
    "repeated words": (
        {"max_repeats": 3},
        "repetition",
        [("buy Buy buy BUY", "kauf"), ("x y", "so so so so gut")],
        [("buy buy buy now buy", "kauf"), ("1 2 1 2 1 2 1 2", "x")],
    ),
    "addresses": (
        {"max_url_share": 0.5},
        "URL",
        [("see https://a.example/b?c", "siehe"), ("me@mail.example.org or", "ich"), ("WWW.A.EXAMPLE", "x")],
        [("see the page at www.a.example for more", "siehe"), ("a @ b", "x")],
    ),
    "letters and digits": (
        {"min_alphanumeric": 0.5},
        "alphanumeric",
        [("- - - > a", "x"), ("x", "§$%& ab")],
        [("a, b", "12 %"), ("हिन्दी", "ไม่รู้")],
    ),
    "the script of one side": (
        {"target_script": ("Cyrillic",)},
        "script",
        [("a dog", "a dog"), ("a dog", "pёs dog")],
        [("a dog", "собака"), ("собака", "собака"), ("1", "123!"), ("a", "собака dog")],
    ),
    "several scripts": (
        {"source_script": ("Han", "Hiragana", "Katakana"), "min_script": 0.9},
        "script",
        [("これは test です", "x")],
        [("ラーメンを食べる", "x")],
    ),
    "long words": (
        {"max_word_length": 5},
        "long word",
        [("abcdef", "x"), ("x", "ab abc-ef")],
        [("abcde fghij", "x"), ("日本語の文章です。", "x"), ("日本語abcde日本語", "x")],
    ),
}


def marks(pairs: list[tuple[str, str]], options: dict[str, Any]) -> list[int]:
    marker = make_marker(CleaningConfig(**options), ("en", "de"))
    assert marker is not None
    return [marker(*pair) for pair in pairs]


@pytest.mark.parametrize("case", CASES)
def test_a_filter_drops_these_pairs_and_keeps_those(case: str) -> None:
    options, reason, dropped, kept = CASES[case]
    assert marks(dropped, options) == [MARKS[reason]] * len(dropped)
    assert marks(kept, options) == [KEPT] * len(kept)


def test_the_filters_are_in_the_order_of_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_fasttext(monkeypatch)
    (tmp_path / "model").touch()
    config = CleaningConfig(
        **{name: value for options, *_ in CASES.values() for name, value in options.items()},
        langid_model=tmp_path / "model",
    )
    names = [reason for reason, _ in enabled_filters(config, ("en", "de"), Overlap(frozenset(), frozenset()))]
    assert names == [reason for reason in REASONS if reason not in ("empty", "duplicate", "too long", "ratio")]


def test_the_limit_of_word_lengths_can_have_any_size() -> None:
    pairs = [("x" * 1000, "y"), ("x" * 1001, "y"), ("犬" * 2000, "y")]
    assert marks(pairs, {"max_word_length": 1000}) == [KEPT, MARKS["long word"], KEPT]
    assert marks(pairs, {"max_word_length": 10**12}) == [KEPT] * 3


def test_a_blank_side_is_empty_whatever_the_filters() -> None:
    assert marks([("", "x"), ("x", " \t"), ("\u3000", "x")], {"min_chars": 3}) == [MARKS["empty"]] * 3


def test_without_options_there_are_no_marks() -> None:
    assert make_marker(CleaningConfig(), ("en", "de")) is None


@pytest.mark.parametrize("script", ["Klingon", "Lu}", "", "L&&N", "Latin]"])
def test_an_unknown_script_is_refused(script: str) -> None:
    with pytest.raises(UserError, match=r"^--source-script .*: not a script of Unicode: use a name such as"):
        make_marker(CleaningConfig(source_script=(script,)), ("en", "de"))


@pytest.mark.parametrize(
    "line",
    [
        *("a" * 200_000, "a " * 100_000, "@" * 200_000, "a@" * 100_000, "a." * 100_000 + "@"),
        *("http://" * 30_000, "http://" + "ä犬" * 100_000, "\0\u202e" * 9999, "́" * 9),
    ],
)
def test_hostile_lines_pass_all_filters_without_an_error(line: str) -> None:
    config = CleaningConfig(
        max_repeats=10**3,
        max_url_share=1,
        min_alphanumeric=0,
        source_script=("Latin",),
        min_script=0,
        max_word_length=10**6,
    )
    for _, drops in enabled_filters(config, ("en", "de"), None):
        drops(line, line[::-1])


def test_shares_are_of_the_characters() -> None:
    assert url_share("ab http://c.de") == 11 / 14
    assert alphanumeric_share("a b ! ?") == 0.5
    assert alphanumeric_share("") == 0


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("https://de.wikipedia.org/wiki/Österreich_und_mehr", 1),
        ("im https://почта.рф/а", 18 / 21),
        ("www.münchen.de ja", 14 / 17),
        ("jörg@münchen.de ja", 15 / 18),
        ("https://a.jp/xを見る", 14 / 17),  # written without a space
        ("https://a.jp/x。", 14 / 15),
    ],
)
def test_a_url_may_have_letters_of_any_script_that_is_written_with_spaces(text: str, share: float) -> None:
    assert url_share(text) == share


def test_the_normal_form_ignores_case_digits_punctuation_and_spaces() -> None:
    assert normal_form("On 24 May, STRASSE!") == normal_form("on 31 may straße")
    assert normal_form("ｅ\u0301") == "é"  # full width, and a combining accent
    assert normal_form(" ?! ") == "?!"
    assert normal_form("a b") != normal_form("a c")


# Overlap with test files


def test_lines_of_test_files_are_dropped_in_their_language_only(tmp_path: Path) -> None:
    (tmp_path / "test.en").write_text("A dog runs.\n\n?!\n", encoding="utf-8")
    options = {"exclude_overlap": (tmp_path / "test.en",)}
    dropped = [("A dog runs.", "x"), ("a DOG  runs", "x"), ("?!", "x")]
    kept = [("x", "A dog runs."), ("A dog ran.", "x"), ("!", "x")]
    assert marks(dropped + kept, options) == [MARKS["overlap"]] * 3 + [KEPT] * 3


def test_a_test_file_of_another_language_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.fr").write_text("x\n")
    with pytest.raises(UserError, match=r"test\.fr: the name must end with the language, \.en or \.de"):
        make_marker(CleaningConfig(exclude_overlap=(tmp_path / "test.fr",)), ("en", "de"))


# Language identification, with a stand-in for the package


class FakeModel:
    """Knows en and de: German text has the word "der"."""

    def predict(self, text: str, k: int = 1) -> tuple[tuple[str, ...], tuple[float, ...]]:
        german = 0.75 if "der" in text.split() else 0.125
        ranked = sorted([(german, "__label__de"), (1 - german, "__label__en")], reverse=True)[: k if k > 0 else None]
        return tuple(label for _, label in ranked), tuple(share for share, _ in ranked)


def fake_fasttext(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("fasttext")
    module.load_model = lambda path: FakeModel()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fasttext", module)


def test_a_pair_in_another_language_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_fasttext(monkeypatch)
    (tmp_path / "model").touch()
    pairs = [("the", "der"), ("the", "the"), ("der", "der"), ("der", "the")]
    options: dict[str, Any] = {"langid_model": tmp_path / "model"}
    dropped = MARKS["language"]
    assert marks(pairs, options) == [KEPT, dropped, dropped, dropped]
    assert marks(pairs, {**options, "min_langid": 0.2}) == [KEPT, dropped, KEPT, dropped]
    assert marks(pairs, {**options, "langid_labels": ("de", "en")}) == [dropped, dropped, dropped, KEPT]
    with pytest.raises(UserError, match="has no language xx: name those of the model with --langid-labels"):
        marks(pairs, {**options, "langid_labels": ("en", "xx")})


def test_language_identification_needs_the_package_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CleaningConfig(langid_model=tmp_path / "model")
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UserError, match=r"needs the package fasttext-predict: pip install 'nmtkit\[clean\]'"):
        make_marker(config, ("en", "de"))
    fake_fasttext(monkeypatch)
    with pytest.raises(UserError, match="model: no such file"):
        make_marker(config, ("en", "de"))
    (tmp_path / "lid.176.ftz").write_bytes(b"truncated")
    with pytest.raises(UserError, match=r"lid\.176\.ftz: 9 bytes instead of"):
        make_marker(CleaningConfig(langid_model=tmp_path / "lid.176.ftz"), ("en", "de"))
