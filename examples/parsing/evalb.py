"""How well trees agree with those of a treebank, as EVALB counts it with Collins's parameters (COLLINS.prm).

    python evalb.py GOLD TREES

Punctuation is deleted, brackets left empty by that and the root are not counted, ADVP and PRT are the same label;
traces have been left out when the trees were read.
What is punctuation the treebank says, for both trees: EVALB goes by each tree's own tags, and leaves out sentences for
which these do not delete the same words.
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
    """What is counted, over one sentence or many."""

    matched: int = 0  #: brackets that both trees have
    gold: int = 0
    found: int = 0
    complete: int = 0  #: sentences with the same brackets
    sentences: int = 0  #: with words besides punctuation
    tags: int = 0  #: words with the same tag
    words: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def recall(self) -> float:
        return self.matched / self.gold if self.gold else 0.0

    @property
    def precision(self) -> float:
        return self.matched / self.found if self.found else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.matched / (self.gold + self.found) if self.matched else 0.0


def brackets(tree: Tree) -> "Counter[tuple[str, int, int]]":
    spans = (span for span in tree.constituents if span.label not in DELETED)
    return Counter((EQUIVALENT.get(label, label), start, end) for label, start, end in spans)


def agreement(gold: Tree, found: Tree) -> Agreement:
    """What two trees over the same words have in common. Raises ValueError where their words differ."""
    if gold.words != found.words:
        raise ValueError(f"the words differ: {' '.join(gold.words)} | {' '.join(found.words)}")
    counted = [leaf.tag not in DELETED for leaf in gold.leaves]
    if not any(counted):
        return Agreement()
    gold, found = gold.only(counted), found.only(counted)
    expected, given = brackets(gold), brackets(found)
    return Agreement(
        matched=(expected & given).total(),
        gold=expected.total(),
        found=given.total(),
        complete=expected == given,
        sentences=1,
        tags=sum(one.tag == other.tag for one, other in zip(gold.leaves, found.leaves, strict=True)),
        words=len(gold.leaves),
    )


def compare(gold: Path, found: Path) -> Agreement:
    """Two files, tree by tree."""
    total = Agreement()
    for number, (one, other) in enumerate(zip_longest(read_trees(gold), read_trees(found)), 1):
        if one is None or other is None:
            raise UserError(f"{gold if one is None else found} ends before tree {number}, the other file goes on")
        try:
            total += agreement(one, other)
        except ValueError as error:
            raise UserError(f"{found}, tree {number}: {error}") from error
    return total


@command("evalb.py")
@click.argument("gold", type=PathName())
@click.argument("trees", type=PathName())
def main(gold: Path, trees: Path) -> None:
    """Compare TREES with those of a treebank, GOLD."""
    total = compare(gold, trees)
    print(f"Sentences          {total.sentences}")
    print(f"Brackets           {total.matched} matched, {total.gold} in the treebank, {total.found} found")
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
