"""Constituency trees: read from and written to Penn's brackets, and as the tokens that a translation model gives.

A tree is kept flat, as its leaves and the spans of its constituents, so that no depth of nesting is too much.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from nmtkit.errors import UserError
from nmtkit.text import read_lines

ROOTS = ("", "TOP", "ROOT", "S1")  # what treebanks and parsers call the root, which is no constituent
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
    """A label over the leaves from `start` up to, and without, `end`."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Tree:
    """A sentence and its constituents, outer ones before inner ones, left ones before right ones; none is empty."""

    leaves: tuple[Leaf, ...]
    constituents: tuple[Constituent, ...]

    @property
    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves]

    def only(self, kept: Sequence[bool]) -> "Tree":
        """The tree of some of its leaves; constituents that lose all of theirs go with them."""
        place = [0, *accumulate(kept)]
        spans = (Constituent(label, place[start], place[end]) for label, start, end in self.constituents)
        return Tree(
            tuple(leaf for leaf, stays in zip(self.leaves, kept, strict=True) if stays),
            tuple(span for span in spans if span.start < span.end),
        )

    def __str__(self) -> str:
        """Penn's brackets, on one line."""
        leaves = iter(self.leaves)

        def penn(token: str) -> str:
            if token.startswith(")"):
                return ")"
            return f" {token}" if token.startswith("(") else " ({} {})".format(*next(leaves))

        return f"({ROOT}{''.join(map(penn, linearize(self)))})"


def linearize(tree: Tree) -> list[str]:
    """The tree as tokens: (NP opens a constituent, )NP closes it, a leaf is its tag."""
    tokens: list[str] = []
    inside: list[Constituent] = []
    coming = 0
    for place in range(len(tree.leaves) + 1):
        while inside and inside[-1].end == place:
            tokens.append(f"){inside.pop().label}")
        while coming < len(tree.constituents) and tree.constituents[coming].start == place:
            inside.append(tree.constituents[coming])
            tokens.append(f"({inside[-1].label}")
            coming += 1
        if place < len(tree.leaves):
            tokens.append(tree.leaves[place].tag)
    return tokens


class TreeBuilder:
    """A tree in the making, from left to right."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.spans: list[Constituent] = []
        self.open: list[int] = []  # places among the spans

    def begin(self, label: str) -> None:
        self.open.append(len(self.spans))
        self.spans.append(Constituent(label, len(self.leaves), -1))

    def end(self, count: int = 1) -> None:
        """Close the innermost `count` constituents."""
        for _ in range(count):
            place = self.open.pop()
            self.spans[place] = self.spans[place]._replace(end=len(self.leaves))

    def opened_since(self, label: str) -> int:
        """How many constituents are open from the innermost of that label on; 0 where none has it."""
        depths = (depth for depth, place in enumerate(reversed(self.open), 1) if self.spans[place].label == label)
        return next(depths, 0)

    def tree(self) -> Tree:
        return Tree(tuple(self.leaves), tuple(span for span in self.spans if span.start < span.end))


def bare(label: str) -> str:
    """A label without functional tags, indices and alternatives: NP for NP-SBJ-1, NP=2, NP|NX; but -LRB- is a label."""
    return label if label.startswith("-") else re.split("[-=|]", label, maxsplit=1)[0]


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file in Penn's brackets, on one line each or on several, without traces and functional tags.

    Raises UserError that names file and line where brackets do not match.
    """
    return parse_brackets(read_lines(path), str(path))


def parse_brackets(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The same of lines, which errors call `name`."""
    builder, depth, number = TreeBuilder(), 0, 0
    for number, line in enumerate(lines, 1):
        for part in _PART.finditer(line):
            if part["odd"] or (depth == 0 and not part["open"]):
                raise UserError(f"{name}, line {number}: {part[0]!r} stands outside of brackets, or beside others")
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
                yield tree.only([leaf.tag != TRACE for leaf in tree.leaves])
                builder = TreeBuilder()
    if depth:
        raise UserError(f"{name}, line {number}: the file ends within a tree, {depth} brackets are open")
