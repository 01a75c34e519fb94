"""Constituency trees: Penn Treebank format, and linearization for a translation model.

A tree is stored flat, as its leaves and the spans of its constituents, so the depth of nesting is not limited.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from nmtkit.errors import UserError
from nmtkit.text.reading import read_lines

ROOTS = ("", "TOP", "ROOT", "S1")  # labels of the root, which is not a constituent
ROOT = "TOP"
TRACE = "-NONE-"
ANY_TAG = "XX"
ANY_LABEL = "X"

_PART = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<word>[^\s()]+)\s*\)|(?P<open>\()\s*(?P<label>[^\s()]*)|(?P<close>\))|(?P<odd>[^\s()]+)"
)


class Leaf(NamedTuple):
    """A word and its part of speech."""

    tag: str
    word: str


class Constituent(NamedTuple):
    """A label and its span of leaves, from `start` to `end` (exclusive)."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """A sentence and its nonempty constituents in preorder: outer before inner, left before right."""

    leaves: tuple[Leaf, ...]
    constituents: tuple[Constituent, ...]

    @property
    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves]

    def keep_leaves(self, kept: Sequence[bool]) -> "Tree":
        """Remove leaves, and constituents that become empty."""
        index = [0, *accumulate(kept)]
        spans = (Constituent(label, index[start], index[end]) for label, start, end in self.constituents)
        return Tree(
            tuple(leaf for leaf, stays in zip(self.leaves, kept, strict=True) if stays),
            tuple(span for span in spans if span.start < span.end),
        )

    def __str__(self) -> str:
        """Penn Treebank brackets on one line."""
        leaves = iter(self.leaves)

        def penn(token: str) -> str:
            if token.startswith(")"):
                return ")"
            return f" {token}" if token.startswith("(") else " ({} {})".format(*next(leaves))

        return f"({ROOT}{''.join(map(penn, linearize(self)))})"


def linearize(tree: Tree) -> list[str]:
    """Convert a tree to tokens: (NP opens a constituent, )NP closes it, and a leaf is its tag."""
    tokens: list[str] = []
    open_spans: list[Constituent] = []
    following = 0
    for position in range(len(tree.leaves) + 1):
        while open_spans and open_spans[-1].end == position:
            tokens.append(f"){open_spans.pop().label}")
        while following < len(tree.constituents) and tree.constituents[following].start == position:
            open_spans.append(tree.constituents[following])
            tokens.append(f"({open_spans[-1].label}")
            following += 1
        if position < len(tree.leaves):
            tokens.append(tree.leaves[position].tag)
    return tokens


class TreeBuilder:
    """Builds a tree from left to right."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.spans: list[Constituent] = []
        self.open: list[int] = []  # indices into `spans`, outermost first

    def begin(self, label: str) -> None:
        self.open.append(len(self.spans))
        self.spans.append(Constituent(label, len(self.leaves), -1))

    def end(self, count: int = 1) -> None:
        """Close the innermost `count` constituents."""
        for _ in range(count):
            index = self.open.pop()
            self.spans[index] = self.spans[index]._replace(end=len(self.leaves))

    def depth_of(self, label: str) -> int:
        """Number of open constituents from the innermost one up to the first with this label; 0 if there is none."""
        depths = (depth for depth, index in enumerate(reversed(self.open), 1) if self.spans[index].label == label)
        return next(depths, 0)

    def tree(self) -> Tree:
        return Tree(tuple(self.leaves), tuple(span for span in self.spans if span.start < span.end))


def bare(label: str) -> str:
    """Strip functional tags, indices and alternatives: NP-SBJ-1, NP=2 and NP|NX become NP. -LRB- is kept."""
    return label if label.startswith("-") else re.split("[-=|]", label, maxsplit=1)[0]


def read_trees(path: Path) -> Iterator[Tree]:
    """Yield the trees of a file in Penn Treebank format, without traces and functional tags.

    A tree may span several lines. Raises UserError with file and line if brackets do not match.
    """
    return parse_brackets(read_lines(path), str(path))


def parse_brackets(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yield the trees of lines like `read_trees`; `name` is the name of the file in errors."""
    builder, depth, number = TreeBuilder(), 0, 0
    for number, line in enumerate(lines, 1):
        for part in _PART.finditer(line):
            if part["odd"] or (depth == 0 and not part["open"]):
                raise UserError(f"{name}, line {number}: unexpected {part[0]!r}")
            if part["open"]:
                depth += 1
                if depth > 1 or part["label"] not in ROOTS:
                    builder.begin(bare(part["label"]) or ANY_LABEL)
            elif part["tag"]:
                builder.leaves.append(Leaf(bare(part["tag"]) or ANY_TAG, part["word"]))
            else:
                depth -= 1
                builder.end(min(1, len(builder.open)))
            if depth == 0:
                tree = builder.tree()
                yield tree.keep_leaves([leaf.tag != TRACE for leaf in tree.leaves])
                builder = TreeBuilder()
    if depth:
        raise UserError(f"{name}, line {number}: the file ends within a tree, {depth} brackets are open")
