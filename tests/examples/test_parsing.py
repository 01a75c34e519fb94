"""Parsing as translation: trees to tokens and back, repair of malformed output, lexicon, labelled F1 as in EVALB."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import evalb
import pytest
from evalb import Agreement, agreement
from hypothesis import given, settings
from hypothesis import strategies as st
from lexicon import counted_trees, make_lexicon, model_words, read_lexicon, tags_of, word_class
from parse import parse
from restore import align, print_restored, restore
from trees import Leaf, Tree, linearize, parse_brackets

from nmtkit import Translator
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.errors import UserError

PIERRE = """( (S (NP-SBJ (NP (NNP Pierre) (NNP Vinken) ) (, ,) (ADJP (NP (CD 61) (NNS years) ) (JJ old) ) (, ,) )
    (VP (MD will) (VP (VB join) (NP (DT the) (NN board) ))) (. .) ))"""


def tree(text: str) -> Tree:
    (only,) = parse_brackets(text.splitlines(), "here")
    return only


# --- reading and writing


def test_a_tree_becomes_labelled_brackets_around_tags() -> None:
    tokens = "(S (NP (NP NNP NNP )NP , (ADJP (NP CD NNS )NP JJ )ADJP , )NP (VP MD (VP VB (NP DT NN )NP )VP )VP . )S"
    assert linearize(tree(PIERRE)) == tokens.split()
    assert " ".join(tree(PIERRE).words) == "Pierre Vinken , 61 years old , will join the board ."


@pytest.mark.parametrize("root", ["( %s )", "(TOP %s)", "(ROOT\n  %s\n)", "(S1 %s)", "%s"])
def test_the_root_is_not_a_constituent_under_any_of_its_names(root: str) -> None:
    sentence = "(S (NP (PRP It)) (VP (VBZ is)))"
    assert str(tree(root % sentence)) == f"(TOP {sentence})"


def test_traces_are_removed_with_constituents_that_have_nothing_else() -> None:
    text = "(S (NP-SBJ-1 (PRP he)) (VP (VBD said) (SBAR (-NONE- 0) (S (NP (-NONE- *-1)) (-NONE- *T*-2)))) (. .))"
    assert str(tree(text)) == "(TOP (S (NP (PRP he)) (VP (VBD said)) (. .)))"


@pytest.mark.parametrize(
    ("label", "bare"), [("NP-SBJ-1", "NP"), ("NP=2", "NP"), ("NP-SBJ=1-3", "NP"), ("ADVP|PRT", "ADVP")]
)
def test_functional_tags_and_indices_are_removed(label: str, bare: str) -> None:
    assert linearize(tree(f"( ({label} (-LRB- -LRB-) (PRP$ its) (-RRB- -RRB-)))")) == [
        *(f"({bare}", "-LRB-", "PRP$", "-RRB-", f"){bare}")
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(S (NN a))\n(S (NN a)", "here, line 2: the file ends within a tree, 1 brackets are open"),
        ("(S (NN a)))", "here, line 1: unexpected ')'"),
        ("\n(S (NP (DT the) dog))", "here, line 2: unexpected 'dog'"),
        ("S (NN a)", "here, line 1: unexpected 'S'"),
    ],
)
def test_mismatched_brackets_are_reported_with_their_line(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        list(parse_brackets(text.split("\n"), "here"))
    assert str(caught.value).startswith(says)


# --- round trips and repair

NAMES = st.sampled_from(["NN", "DT", ".", ",", "``", "-LRB-", "PRP$", "#", "XX"])
LABELS = st.sampled_from(["S", "NP", "VP", "PP", "WHNP", "X", "TOP"])
WORDS = st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="()"), min_size=1, max_size=6)
LEAVES = st.builds("({} {})".format, NAMES, WORDS)
CONSTITUENTS = st.recursive(
    st.builds("({} {})".format, LABELS, LEAVES),
    lambda inner: st.builds(
        lambda label, parts: f"({label} {' '.join(parts)})", LABELS, st.lists(LEAVES | inner, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
TREES = st.lists(LEAVES | CONSTITUENTS, min_size=1, max_size=3).map(lambda parts: f"(TOP {' '.join(parts)})")
TOKENS = st.sampled_from(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "NN", "DT", "-NONE-", "<unk>"])
SYMBOLS = st.text("()-=| NPS\u3042", min_size=1, max_size=4).map(lambda text: text.replace(" ", "") or "(")


@settings(deadline=None)
@given(TREES)
def test_every_tree_is_restored_from_its_text_and_from_its_tokens(text: str) -> None:
    original = tree(text)
    assert str(original) == text
    assert restore(linearize(original), original.words) == original


def well_formed(some: Tree) -> bool:
    """Constituents are nested, in preorder and not empty."""
    inside = [len(some.leaves)]
    before = 0
    for _, start, end in some.constituents:
        while inside and inside[-1] <= start:
            inside.pop()
        if not (before <= start < end) or not inside or end > inside[-1]:
            return False
        inside.append(end)
        before = start
    return True


SENTENCES = st.lists(st.tuples(WORDS, st.lists(st.sampled_from(["NN", "DT", "."]), max_size=2)), max_size=12)


@settings(deadline=None)
@given(st.lists(TOKENS | SYMBOLS, max_size=40), SENTENCES)
def test_any_tokens_are_restored_to_a_well_formed_tree_over_exactly_the_words(
    tokens: list[str], sentence: list[tuple[str, list[str]]]
) -> None:
    words = [word for word, _ in sentence]
    restored = restore(tokens, words, [tags for _, tags in sentence])
    assert restored.words == words
    assert well_formed(restored)
    assert tree(str(restored)) == restored
    assert restore(linearize(restored), words) == restored
    assert restore(linearize(restored), words, [[leaf.tag] for leaf in restored.leaves]) == restored


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("(S (NP DT NN )NP (VP VBZ", "(S (NP (DT a) (NN b)) (VP (VBZ c)))"),
        ("(S (NP DT NN )S VBZ", "(S (NP (DT a) (NN b))) (VBZ c)"),
        (")VP )S DT NN )S VBZ", "(DT a) (NN b) (VBZ c)"),
        ("(S (NP DT )NP )S", "(S (NP (DT a)) (XX b) (XX c))"),
        ("(S DT (NP NN VBZ JJ )NP (PP IN )PP )S", "(S (DT a) (NP (NN b) (VBZ c)))"),
        ("-NONE- (NP-SBJ NN VBZ )NP-SBJ", "(XX a) (NP (NN b) (VBZ c))"),
        ("", "(XX a) (XX b) (XX c)"),
    ],
)
def test_malformed_output_is_repaired(tokens: str, expected: str) -> None:
    assert str(restore(tokens.split(), ["a", "b", "c"])) == f"(TOP {expected})"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("(S (NP NN )NP (VP VBZ )VP . )S", "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"),
        ("(S (NP DT JJ NN )NP (VP VBZ )VP . )S", "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"),
        ("(S (NP DT NN )NP (VP VBZ (NP DT )NP )VP . )S", "(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))"),
        ("(S (NP PRP )NP (VP VBZ )VP . )S", "(S (NP (PRP the) (NN dog)) (VP (VBZ barks)) (. .))"),
    ],
)
def test_possible_tags_of_words_locate_missing_and_superfluous_leaves(tokens: str, expected: str) -> None:
    tags = [["DT"], ["NN", "VB"], ["VBZ", "NNS"], ["."]]
    assert str(restore(tokens.split(), ["the", "dog", "barks", "."], tags)) == f"(TOP {expected})"


def fewest_edits(found: list[str], tags: list[list[str]]) -> int:
    """Reference implementation by exhaustive recursion."""
    if not found or not tags:
        return len(found) + len(tags)
    return min(
        fewest_edits(found[1:], tags[1:]) + (found[0] not in tags[0]),
        fewest_edits(found[1:], tags) + 1,
        fewest_edits(found, tags[1:]) + 1,
    )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=2), max_size=5),
)
def test_words_and_tags_are_aligned_with_the_fewest_edits(found: list[str], tags: list[list[str]]) -> None:
    edits, places = align(found, tags)
    together = [(found[place], likely) for place, likely in zip(places, tags, strict=True) if place is not None]
    taken = [place for place in places if place is not None]
    assert taken == sorted(set(taken))
    misfits = sum(tag not in likely for tag, likely in together)
    assert edits == misfits + len(found) + len(tags) - 2 * len(together) == fewest_edits(found, tags)


def test_the_number_of_repaired_outputs_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lexicon").write_text("it PRP\nunknown-s NNS VBZ\n")
    (tmp_path / "text").write_text("it rains\nit rains\n")
    (tmp_path / "output").write_text("(S PRP VBZ )S\n(S PRP\n")
    print_restored(read_lexicon(tmp_path / "lexicon"), tmp_path / "text", tmp_path / "output")
    printed = capsys.readouterr()
    assert printed.out == "(TOP (S (PRP it) (VBZ rains)))\n(TOP (S (PRP it) (NNS rains)))\n"
    assert printed.err.startswith("1 of 2 outputs")
    (tmp_path / "output").write_text("(S PRP VBZ )S\n")
    with pytest.raises(UserError, match="output ends before sentence 2"):
        print_restored(read_lexicon(tmp_path / "lexicon"), tmp_path / "text", tmp_path / "output")


class Scripted:
    """A translator with a constant n-best list."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.lines: list[str] = []

    def stream(self, lines: Iterable[str], search: SearchConfig) -> Iterator[Translation]:
        for line in lines:
            self.lines.append(line)
            texts = ["(S", self.output, self.output + " )NP"][: search.nbest] if line else [""]
            yield Translation(line, tuple(map(Candidate, texts)))


def test_brackets_in_sentences_are_replaced_by_the_tokens_of_treebanks() -> None:
    translator = Scripted("(S NN -LRB- -RRB- )S")
    lexicon = {"rain": ["NN"], "-LRB-": ["-LRB-"], "-RRB-": ["-RRB-"], "unknown": ["RB"]}
    parsed = list(parse(["rain (again)\n", "\n"], cast(Translator, translator), lexicon))
    assert translator.lines == ["rain -LRB- unknown -RRB-", ""]
    assert [str(tree) for tree, _ in parsed] == ["(TOP (S (NN rain) (-LRB- -LRB-) (RB again) (-RRB- -RRB-)))", "(TOP)"]


def test_a_treebank_that_is_repeated_to_weigh_more_is_counted_once(tmp_path: Path) -> None:
    treebank, extra = tmp_path / "train", tmp_path / "extra"
    treebank.write_text("(S (NN rain))\n(S (NN snow))\n(S (NN snow))\n")
    extra.write_text(treebank.read_text() + "(S (NN hail))\n" + treebank.read_text())
    words = [leaf.word for tree in counted_trees([treebank, extra]) for leaf in tree.leaves]
    assert words == ["rain", "snow", "snow", "hail"]


def test_repaired_trees_are_distinguished_from_unchanged_ones() -> None:
    translator, lexicon = cast(Translator, Scripted("(S NN NN )S")), {"rain": ["NN"]}
    assert [unchanged for _, unchanged in parse(["rain rain", "rain"], translator, lexicon)] == [True, False]
    assert [unchanged for _, unchanged in parse(["rain rain"], translator, lexicon, beam=1)] == [False]


def test_the_output_whose_tags_fit_the_words_best_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lexicon").write_text("it PRP\nunknown-s NNS VBZ\n")
    (tmp_path / "text").write_text("it rains\n\nit\n")
    (tmp_path / "output").write_text("(X PRP )X\n(S PRP VBZ )S\n(X PRP NNS )X\n" + "\n" * 3 + "(X NN )X\nPRP\n\n")
    print_restored(read_lexicon(tmp_path / "lexicon"), tmp_path / "text", tmp_path / "output", 3)
    printed = capsys.readouterr()
    assert printed.out == "(TOP (S (PRP it) (VBZ rains)))\n(TOP)\n(TOP (PRP it))\n"
    assert printed.err.startswith("0 of 3 outputs")
    with pytest.raises(UserError, match="output ends before sentence 3, or within it"):
        print_restored(read_lexicon(tmp_path / "lexicon"), tmp_path / "text", tmp_path / "output", 4)


# --- rare words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("1989", "unknown-digit"),
        ("Elsevier", "unknown-capital-er"),
        ("U.S.", "unknown-capital-capitals"),
        ("third-quarter", "unknown-hyphen-er"),
        ("is", "unknown"),
        ("nonrecurring", "unknown-ing"),
    ],
)
def test_the_class_of_a_word_has_its_digits_capitals_hyphen_and_suffix(word: str, expected: str) -> None:
    assert word_class(word) == expected


def test_a_lexicon_has_the_tags_of_the_most_frequent_words_and_of_the_classes_of_others() -> None:
    leaves = [
        Leaf(*pair.split("/")) for pair in ["NN/b", "NN/b", "VB/b", "NN/a", "NN/a", "JJ/once", "NN/twice", "NN/twice"]
    ]
    lexicon = make_lexicon(2, leaves)
    assert {word: [tag for tag, _ in tags.most_common()] for word, tags in lexicon.items()} == {
        **{"b": ["NN", "VB"], "a": ["NN"]},
        **{"unknown-e": ["NN", "JJ"]},
    }


def test_an_unknown_word_has_the_tags_of_its_class(tmp_path: Path) -> None:
    (tmp_path / "lexicon").write_text("the DT\nunknown-ed VBD VBN\n")
    lexicon = read_lexicon(tmp_path / "lexicon")
    assert tags_of(["The", "rained", "42"], lexicon) == [["DT"], ["VBD", "VBN"], ()]
    (tmp_path / "lexicon").write_text("the DT\nrained\n")
    with pytest.raises(UserError, match="lexicon, line 2: not a word and its tags"):
        read_lexicon(tmp_path / "lexicon")


def test_the_input_of_the_model_has_known_words_and_classes() -> None:
    known = {"the", "company", "in"}
    assert model_words(["The", "company", "walked", "in", "The", "end"], known) == [
        *("the", "company", "unknown-ed", "in", "unknown-capital-e", "unknown")
    ]
    assert model_words([], known) == []


# --- labelled F1

# Brackets: matched, in the treebank, predicted; equal tags; words. The figures are those of PYEVALB 0.1.3
# (Scorer.score_trees) for the same trees. It has no parameters, so COLLINS.prm was applied before: see PARAMETERS.
DOG = "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"
COUNTED_BY_PYEVALB = {
    "the same": (DOG, DOG, 3, 3, 3, 3, 3),
    "attachment": (
        "(S (NP (PRP I)) (VP (VBD saw) (NP (DT the) (NN man)) (PP (IN with) (NP (DT a) (NN telescope)))))",
        "(S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT the) (NN man)) (PP (IN with) (NP (DT a) (NN telescope))))))",
        *(6, 6, 7, 7, 7),
    ),
    "crossing": (
        "(S (NP (NP (JJ old) (NNS men)) (CC and) (NP (NNS women))) (VP (VBP sleep)))",
        "(S (NP (JJ old) (NP (NNS men) (CC and) (NNS women))) (VP (VBP sleep)))",
        *(3, 5, 4, 5, 5),
    ),
    "other labels": (
        "(S (NP (VBG Running)) (VP (VBZ helps)))",
        "(S (S (VP (VBG Running))) (VP (VBZ helps)))",
        *(2, 3, 4, 2, 2),
    ),
    "nothing in common": (DOG, "(X (DT the) (NN dog) (VBZ barks))", 0, 3, 1, 3, 3),
    "other tags": (
        "(S (NP (PRP They)) (VP (VBP can) (NP (NN fish))))",
        "(S (NP (PRP They)) (VP (MD can) (VP (VB fish))))",
        *(3, 4, 4, 1, 3),
    ),
    "a label twice in the treebank": (
        "(S (NP (NP (NN rain))) (VP (VBZ falls)))",
        "(S (NP (NN rain)) (VP (VBZ falls)))",
        *(3, 4, 3, 2, 2),
    ),
    "one word, two labels": ("(S (VP (VB Go)))", "(VP (S (VB Go)))", 2, 2, 2, 1, 1),
}


@pytest.mark.parametrize("case", COUNTED_BY_PYEVALB.values(), ids=list(COUNTED_BY_PYEVALB))
def test_brackets_and_tags_are_counted_as_by_pyevalb(case: tuple[str, str, int, int, int, int, int]) -> None:
    gold, found, *expected = case
    counted = agreement(tree(gold), tree(found))
    assert [counted.matched, counted.gold, counted.predicted, counted.tags, counted.words] == expected
    assert counted.complete == (counted.matched == counted.gold == counted.predicted)


# The effect of COLLINS.prm in EVALB: both trees count as the third one.
PARAMETERS = {
    "a comma in another place": (
        "(S (NP (DT the) (NN dog) (, ,)) (VP (VBZ barks)) (. .))",
        "(TOP (S (NP (DT the) (NN dog)) (, ,) (VP (VBZ barks) (. .))))",
        DOG,
    ),
    "a constituent of nothing but punctuation": (
        "(S (NP (DT the) (NN dog)) (PRN (: --) (X (. !))) (VP (VBZ barks)))",
        "(S (NP (DT the) (NN dog) (: --) (. !)) (VP (VBZ barks)))",
        DOG,
    ),
    "punctuation that the model tags differently": (
        "(S (`` ``) (NP (DT the) (NN dog)) ('' '') (VP (VBZ barks)))",
        "(S (XX ``) (NP (DT the) (NN dog)) (VP (POS '') (VBZ barks)))",
        DOG,
    ),
    "PRT and ADVP": (
        "(S (NP (PRP it)) (VP (VBD gave) (PRT (RP up))))",
        "(S (NP (PRP it)) (VP (VBD gave) (ADVP (RP up))))",
        "(S (NP (PRP it)) (VP (VBD gave) (ADVP (RP up))))",
    ),
    "the root within": ("(S (NN rain))", "(TOP (TOP (S (NN rain))))", "(S (NN rain))"),
    # each bracket of the treebank matches at most one predicted bracket
    "a label twice in both": ("(NP (NP (NN rain)))", "(NP (NP (NN rain)))", "(NP (NP (NN rain)))"),
}


@pytest.mark.parametrize(("gold", "found", "counts_as"), PARAMETERS.values(), ids=list(PARAMETERS))
def test_punctuation_root_and_equivalent_labels_do_not_change_the_score(gold: str, found: str, counts_as: str) -> None:
    brackets = len(tree(counts_as).constituents)
    words = len(tree(counts_as).leaves)
    assert agreement(tree(gold), tree(found)) == Agreement(brackets, brackets, brackets, 1, 1, words, words)


def test_a_constituent_labelled_as_a_trace_counts() -> None:
    """EVALB deletes words tagged -NONE-, but strips the label of a constituent from its first hyphen on."""
    found = agreement(tree(DOG), tree("(S (NP (DT the) (NN dog)) (-NONE- (VP (VBZ barks))))"))
    assert (found.matched, found.gold, found.predicted) == (3, 3, 4)


def test_a_sentence_of_nothing_but_punctuation_is_skipped() -> None:
    dots = tree("(S (: ...) (. .))")
    assert agreement(dots, dots) == Agreement()


def test_f1_is_computed_over_all_brackets_and_not_averaged_over_sentences() -> None:
    total = Agreement(matched=1, gold=2, predicted=1) + Agreement(matched=5, gold=8, predicted=11)
    assert (total.recall, total.precision) == (0.6, 0.5)
    assert total.f1 == pytest.approx(12 / 22)
    assert Agreement().f1 == 0


def test_trees_over_different_words_are_refused_with_file_and_number(tmp_path: Path) -> None:
    gold, found = tmp_path / "gold", tmp_path / "found"
    gold.write_text(f"{DOG}\n{DOG}\n")
    found.write_text(f"{DOG}\n{DOG.replace('dog', 'cat')}\n")
    with pytest.raises(UserError, match="found, tree 2: the words differ"):
        evalb.compare(gold, found)
    found.write_text(DOG)
    with pytest.raises(UserError, match="found ends before tree 2"):
        evalb.compare(gold, found)
