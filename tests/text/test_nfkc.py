"""NFKC of long texts: the same result as of unicodedata, without its quadratic time."""

import random
import re
import sys
import unicodedata
from itertools import pairwise

import pytest
from repository import ROOT

from nmtkit.text import nfkc as module
from nmtkit.text.nfkc import nfkc

CHARACTERS = "".join(map(chr, range(sys.maxunicode + 1)))
DECOMPOSED = [unicodedata.normalize("NFKD", character) for character in CHARACTERS]
DISORDERED = "\u0301\u0323"  # classes 230 and 220


def test_the_result_is_that_of_unicodedata() -> None:
    generator = random.Random(1)
    with_marks = [
        one for one, form in zip(CHARACTERS, DECOMPOSED, strict=True) if any(map(unicodedata.combining, form))
    ]
    others = ["a", "가", "\u1100", "\u1161", "\ufdfa", "\ud800", " "]
    texts = [
        "".join(generator.choice(with_marks if generator.random() < 0.97 else others) for _ in range(length))
        for length in range(400, 1200)
    ]
    for text in ("", CHARACTERS, *texts):
        assert nfkc(text) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("pair", [DISORDERED, "\u0f73\u0f71", "\u3099\uff9e\u0301"])
def test_marks_of_a_long_text_are_ordered_before_unicodedata(pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its insertion sort takes linear time if the classes of the decomposed marks do not decrease."""
    given = list[str]()

    def normalize(form: str, text: str) -> str:
        given.append(text)
        return text

    monkeypatch.setattr(unicodedata, "normalize", normalize)
    nfkc("x" + pair * 1000)
    monkeypatch.undo()
    decomposed = "".join(unicodedata.normalize("NFKD", character) for character in given[0])
    classes = [unicodedata.combining(character) for character in decomposed]
    assert all(first <= second for first, second in pairwise(classes))


def test_no_other_character_hides_marks() -> None:
    """A decomposition that begins with a mark is of a mark, except for the characters of the table."""
    hiding = [
        ord(character)
        for character, form in zip(CHARACTERS, DECOMPOSED, strict=True)
        if unicodedata.combining(form[0]) and not unicodedata.combining(character)
    ]
    assert hiding == sorted(module._MARKS_OF_CLASS_0)


def test_only_one_module_normalizes_text() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "nmtkit").rglob("*.py")}
    assert [path.name for path, text in sources.items() if re.search("unicodedata.*normalize", text)] == ["nfkc.py"]
