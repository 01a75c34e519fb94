"""Scores trees against a treebank as EVALB does with Collins's parameters (COLLINS.prm).

    python evalb.py GOLD TREES

Punctuation is deleted. The root and brackets that become empty are not counted. ADVP and PRT are the same label. Traces
are removed when the trees are read.

The tags of the treebank decide which words are punctuation in both trees. EVALB uses the tags of each tree, and skips
sentences in which they delete different words.
"""

from collections import Counter
from dataclasses import astuple, dataclass
from itertools import zip_longest
from pathlib import Path

import click
from trees import ROOT, Tree, read_trees

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError

DELETED = {ROOT, ",", ":", "``", "''", "."}
EQUIVALENT = {"PRT": "ADVP"}


@dataclass(frozen=True)
class Agreement:
    """Counts over one or several sentences."""

    matched: int = 0  # brackets in both trees
    gold: int = 0  # brackets of the treebank
    predicted: int = 0  # brackets of the other trees
    complete: int = 0  # sentences with equal brackets
    sentences: int = 0  # sentences with words other than punctuation
    tags: int = 0  # words with equal tags
    words: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def recall(self) -> float:
        return self.matched / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        return self.matched / self.predicted if self.predicted else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.matched / (self.gold + self.predicted) if self.matched else 0.0


def brackets(tree: Tree) -> "Counter[tuple[str, int, int]]":
    spans = (span for span in tree.constituents if span.label not in DELETED)
    return Counter((EQUIVALENT.get(label, label), start, end) for label, start, end in spans)


def agreement(gold: Tree, predicted: Tree) -> Agreement:
    """Compare two trees over the same words. Raises ValueError if their words differ."""
    if gold.words != predicted.words:
        raise ValueError(f"the words differ: {' '.join(gold.words)} | {' '.join(predicted.words)}")
    counted = [leaf.tag not in DELETED for leaf in gold.leaves]
    if not any(counted):
        return Agreement()
    gold, predicted = gold.keep_leaves(counted), predicted.keep_leaves(counted)
    expected, given = brackets(gold), brackets(predicted)
    return Agreement(
        matched=(expected & given).total(),
        gold=expected.total(),
        predicted=given.total(),
        complete=expected == given,
        sentences=1,
        tags=sum(one.tag == other.tag for one, other in zip(gold.leaves, predicted.leaves, strict=True)),
        words=len(gold.leaves),
    )


def compare(gold: Path, predicted: Path) -> Agreement:
    """Compare two files tree by tree. Raises UserError if words or numbers of trees differ."""
    total = Agreement()
    for number, (one, other) in enumerate(zip_longest(read_trees(gold), read_trees(predicted)), 1):
        if one is None or other is None:
            raise UserError(f"{gold if one is None else predicted} ends before tree {number}, the other file does not")
        try:
            total += agreement(one, other)
        except ValueError as error:
            raise UserError(f"{predicted}, tree {number}: {error}") from error
    return total


@command("evalb.py")
@click.argument("gold", type=PathName())
@click.argument("trees", type=PathName())
def main(gold: Path, trees: Path) -> None:
    """Score TREES against the trees of a treebank, GOLD."""
    total = compare(gold, trees)
    print(f"Sentences          {total.sentences}")
    print(f"Brackets           {total.matched} matched, {total.gold} in the treebank, {total.predicted} found")
    for name, share in {
        "Recall": total.recall,
        "Precision": total.precision,
        "F1": total.f1,
        "Complete match": total.complete / max(1, total.sentences),
        "Tagging accuracy": total.tags / max(1, total.words),
    }.items():
        print(f"{name:19}{100 * share:.2f}")


if __name__ == "__main__":
    main()
