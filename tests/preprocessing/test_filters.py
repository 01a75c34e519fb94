"""The filters of noisy pairs, one by one, and the marks that they give."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from nmtkit.errors import UserError
from nmtkit.preprocessing.config import CleaningConfig
from nmtkit.preprocessing.dedup import normal_form
from nmtkit.preprocessing.filters import make_marker
from nmtkit.preprocessing.reasons import KEPT, MARKS

# options, reason, and pairs: those that the filter drops, and those that it keeps
CASES: dict[str, tuple[dict[str, Any], str, list[tuple[str, str]], list[tuple[str, str]]]] = {
    "equal sides": (
        {"drop_identical": True},
        "identical",
        [("Berlin", "Berlin"), (" Berlin", "Berlin\r")],
        [("Berlin", "berlin")],
    ),
    "the script of one side": (
        {"target_script": ("Cyrillic",)},
        "script",
        [("a dog", "a dog"), ("a dog", "pёs dog")],
        [("a dog", "собака"), ("собака", "собака"), ("1", "123!"), ("a", "собака dog")],
    ),
    "several scripts": (
        {"source_script": ("Han", "Hiragana", "Katakana")},
        "script",
        [("これは a test case です", "x")],
        [("ラーメンを食べる", "x")],
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


@pytest.mark.parametrize("script", ["Klingon", "L&&N"])
def test_an_unknown_script_is_refused(script: str) -> None:
    with pytest.raises(UserError, match=r"^--source-script .* is not a Unicode script: use a name such as"):
        make_marker(CleaningConfig(source_script=(script,)), ("en", "de"))


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
    with pytest.raises(UserError, match=r"test\.fr: the file name must end with the language, \.en or \.de"):
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
    with pytest.raises(UserError, match="no label for xx: give the model's labels with --langid-labels"):
        marks(pairs, {**options, "langid_labels": ("en", "xx")})


def test_language_identification_needs_the_package_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CleaningConfig(langid_model=tmp_path / "model")
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(UserError, match=r"needs the package fasttext-predict: pip install 'nmtkit\[clean\]'"):
        make_marker(config, ("en", "de"))
    fake_fasttext(monkeypatch)
    with pytest.raises(UserError, match="model: no such file"):
        make_marker(config, ("en", "de"))
