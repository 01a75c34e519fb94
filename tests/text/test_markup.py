"""Inline tags in translations: tables of cases, and properties on random trees and alignments."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.text.markup import KEPT, escape, parse, render, scan
from nmtkit.text.segment import PLACEHOLDERS, Kind, Segment, Tag, place, protect, words


def reversal(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A translation into upper case in the reverse order of words, and its alignment."""
    spans = words(text)
    return " ".join(text[a:b].upper() for a, b in reversed(spans)), [(i, len(spans) - 1 - i) for i in range(len(spans))]


@pytest.mark.parametrize(
    ("tagged", "target", "alignment", "expected"),
    [
        ("I <b>like</b> cats.", "I LIKE CATS.", "0-0 1-1 2-2 3-3", "I <b>LIKE</b> CATS."),
        ("<b>one two</b> <i>three</i>", "THREE TWO ONE", "0-2 1-1 2-0", "<i>THREE</i> <b>TWO ONE</b>"),
        ("un<b>believ</b>able", "UNBELIEVABLE", "0-0", "<b>UNBELIEVABLE</b>"),
        ("I <b>not</b> <i>eat</i> now", "I NE EAT PAS NOW", "0-0 1-1 2-2 1-3 3-4", "I <b>NE <i>EAT</i> PAS</b> NOW"),
        ("see <b>the</b> dog", "SEE DOG", "0-0 2-1", "SEE<b></b> DOG"),
        ("look <br> here now", "NOW HERE LOOK", "0-2 1-1 2-0", "NOW <br> HERE LOOK"),
        ("a<x/><y/> b", "B A", "0-1 1-0", "B A<x/><y/>"),
        ("a <x/> <y/> b", "A B", "0-0 1-1", "A <x/> <y/> B"),
        ("<x/> press", "", "", "<x/>"),
        ("<b>a <x/></b> b c", "X Y", "", "<b>X Y <x/></b>"),
        ("a <b>b</b> <i>c</i>", "X Y", "", "<b><i>X Y</i></b>"),
        ("a <b>b</b> <i>c d</i>", "B C D", "1-0 1-1 2-1 3-2", "<b>B C</b> <i>D</i>"),
        ('use <code>ls -l</code> <b translate="no">a&amp;b</b>', "A&B LS -L USE", "0-6",
         '<b translate="no">a&amp;b</b> <code>ls -l</code> USE'),
        ('use <i class="notranslate">K8s</i> it', "IT KA USE", "0-2 1-1 2-0", 'IT <i class="notranslate">K8s</i> USE'),
        ('use <i class="notranslate">K8s</i> now', "NOW USE", "0-1 1-1 2-0", 'NOW <i class="notranslate">K8s</i> USE'),
        ("say <code>a</code> once", "THAT IS A", "", "THAT IS <code>a</code>"),
        ("运行 <code>ls</code>", "在ls上", "", "在<code>ls</code>上"),
        ('<u translate="no">A <i class="translate">b</i></u>', "A B", "0-0 1-1",
         '<u translate="no">A <i class="translate">B</i></u>'),
        ("x &lt; y&nbsp;&amp; <i>z", "X < Y\xa0& Z", "0-0 1-1 2-2 3-3 4-4", "X &lt; Y&nbsp;&amp; <i>Z"),
        ("a < b <3 <i title='>'>c</i>", "A < B <3 C", "5-5", "A &lt; B &lt;3 <i title='>'>C</i>"),
        ("a</b> b <i>c", "C B A", "0-2 1-1 2-0", "C B A</b><i>"),
        ("<b><i>a</b></i> b", "B A", "0-1 1-0", "B <b><i>A</b></i>"),
    ],
)  # fmt: skip
def test_cases(tagged: str, target: str, alignment: str, expected: str) -> None:
    links = [(int(source), int(to)) for source, to in (link.split("-") for link in alignment.split())]
    assert render(place(parse(tagged), target, links)) == expected


LEAVES = st.sampled_from(
    ["cat", "dog", " ", ", ", "x y", "(a b)", "<br>", "<x id='1'/>", "<!-- c -->", "&amp;", "<code>k v</code>"]
)
TREES = st.recursive(
    st.lists(LEAVES, max_size=4).map("".join),
    lambda inner: st.lists(
        st.tuples(st.sampled_from("biu"), inner, LEAVES).map(lambda t: f"<{t[0]}>{t[1]}</{t[0]}>{t[2]}")
    ).map("".join),
    max_leaves=8,
)
ALIGNMENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=14)
TARGETS = st.lists(st.sampled_from(["Y", "Z", ".", "k", "k v", "(", "&"]), max_size=8).map(" ".join)


def numbered(tagged: str) -> str:
    """Tags that differ: a number in each opening one."""
    counter = iter(range(1000))
    return re.sub("<([biu]|br)>", lambda match: f"<{match[1]} n={next(counter)}>", tagged)


@given(TREES.map(numbered), TARGETS, ALIGNMENTS)
def test_every_tag_occurs_once_nested_and_the_text_is_the_target(
    tagged: str, target: str, alignment: list[tuple[int, int]]
) -> None:
    result = render(place(parse(tagged), target, alignment))
    tags = [token for token in scan(result) if token.kind != "text"]
    assert sorted(tag.raw for tag in tags) == sorted(token.raw for token in scan(tagged) if token.kind != "text")
    opened: list[str] = []
    for tag in tags:
        if tag.kind == "open":
            opened.append(tag.name)
        elif tag.kind == "close":
            assert opened.pop() == tag.name
    if "<code>" not in tagged:
        text = "".join(part for part in parse(result).parts if isinstance(part, str))
        assert text.split() == target.split()
        if not re.search("<br|<x|<!", tagged) and all(pair.strip() for pair in re.findall("[^<>]*(?=</)", tagged)):
            assert text == target
    assert "<code>k v</code>" * tagged.count("<code>") in "".join(re.findall("<code>.*?</code>", result))
    if not alignment and "<code>" not in tagged and target:
        assert re.fullmatch(f"(<[biu][^>]*>)*{re.escape(escape(target))}(<[^>]*>|\\s)*", result)


@given(TREES)
def test_the_identity_keeps_the_segment(tagged: str) -> None:
    segment = parse(tagged)
    assert render(segment).replace("&amp;", "&") == re.sub(r"\s+", " ", tagged).replace("&amp;", "&")
    count = len(words(segment.text))
    placed = place(segment, segment.text, [(i, i) for i in range(count)])
    assert placed.text == segment.text


@given(TREES.map(numbered), TARGETS, ALIGNMENTS)
def test_tags_that_may_not_move_keep_their_order(tagged: str, target: str, alignment: list[tuple[int, int]]) -> None:
    segment = parse(re.sub("</?code>", "", tagged))
    fixed = place(Segment(segment.parts, movable=False), target, alignment)
    assert [part for part in fixed.parts if isinstance(part, Tag)] == [
        part for part in segment.parts if isinstance(part, Tag)
    ]


@given(st.text("<>a!-=\"' /b?[]", max_size=40))
def test_tokens_are_the_text(text: str) -> None:
    for is_html in (True, False):
        assert "".join(token.raw for token in scan(text, is_html)) == text


def test_protected_text_is_text_again_in_the_translation() -> None:
    segment = protect(parse("Dear {name}, see https://x.org/a?b=1. <b>%d</b> of {{ n }}, 5 % discount"), PLACEHOLDERS)
    assert [part.text for part in segment.parts if isinstance(part, Tag) and part.text] == [
        "{name}", "https://x.org/a?b=1", "%d", "{{ n }}"
    ]  # fmt: skip
    target, alignment = "OF {NAME} 5 KB", [(0, 1)]
    placed = place(segment, target, alignment)
    assert all(isinstance(part, str) or part.raw for part in placed.parts)
    assert all(placed.text.count(kept) == 1 for kept in ("{name}", "https://x.org/a?b=1", "%d", "{{ n }}"))


def test_protected_text_without_a_translation_is_a_word_of_its_own() -> None:
    assert render(place(parse("see <code>x1</code>."), "Siehe das.", [(0, 0)])) == "Siehe <code>x1</code> das."
    assert render(place(parse("see <code>x1</code>."), "Siehe.", [(0, 0)])) == "Siehe <code>x1</code>."


def test_words_can_be_pieces_of_a_text_without_spaces() -> None:
    segment = parse("我<b>喜欢</b>猫")
    pieces = [(0, 1), (1, 3), (3, 4)]
    placed = place(segment, "猫を好む", [(2, 0), (1, 1)], pieces, [(0, 2), (2, 4)])
    assert render(placed) == "猫を<b>好む</b>"


def test_kept_elements_are_given_by_name() -> None:
    assert parse("<kbd>X</kbd> <code>y</code>", kept={"kbd"}).parts[0] == Tag(
        Kind.ALONE, "<kbd>X</kbd>", text="X", offset=0
    )
    assert "code" in KEPT


def test_hostile_text_takes_linear_time() -> None:
    for text in (
        "<a b=" * 5_000,
        "<!--" * 5_000,
        '<a "' * 5_000,
        "<b>" * 5_000,
        "</b>" * 5_000,
        "<?" * 5_000,
        "<a b='" * 5_000,
    ):
        parse(text)
