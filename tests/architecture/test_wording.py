"""The escapes, numbers and values of messages."""

import json
import sys
import unicodedata

import pytest

from nmtkit.wording import counted, escaped, escaped_json, quoted

BIDI = {"\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}


def controls() -> list[str]:
    """Every character that must not reach a terminal, by its Unicode category rather than by ranges."""
    every = map(chr, range(sys.maxunicode + 1))
    return [char for char in every if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") or char in BIDI]


def test_only_control_characters_are_escaped() -> None:
    assert len(controls()) == 65 + 2 + len(BIDI) + 0x800
    for char in controls():
        assert escaped(f"a{char}b").isprintable(), hex(ord(char))
        assert json.loads(escaped_json(json.dumps(char, ensure_ascii=False))) == char
    others = set(map(chr, range(sys.maxunicode + 1))) - set(controls())
    assert escaped("".join(others)) == "".join(others)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("straße 日本 ▁a 🙂", "straße 日本 ▁a 🙂"),
        ("red\x1b[31m\a", r"red\x1b[31m\x07"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\x7f\x85\x9b2J\u2028\u202e", r"\x7f\x85\x9b2J\u2028\u202e"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_a_control_character_is_escaped_as_in_python(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_counts_have_singular_and_plural() -> None:
    assert [counted(n, "line") for n in range(3)] == ["no lines", "1 line", "2 lines"]
    assert [counted(n, "batch", "batches") for n in range(3)] == ["no batches", "1 batch", "2 batches"]


def test_a_long_text_keeps_its_ends() -> None:
    shown = quoted("begin" + "x" * 99 + "end")
    assert shown.startswith("'begin")
    assert shown.endswith("end'")


def test_a_deep_or_wide_value_is_short() -> None:
    deep: list[object] = []
    for _ in range(10**5):
        deep = [deep]
    assert max(len(quoted(value)) for value in (deep, [["x" * 999] * 999] * 999, {"x" * 99: 10**999})) < 70
