"""The output of a model to trees over the words that it was given.

    python restore.py LEXICON TEXT OUTPUT [N] > TREES     a tree for each line of TEXT, whatever OUTPUT says

With N, OUTPUT has N lines for each line of TEXT, likely ones first, and the one whose tags fit the words best is taken.
How many of those that were taken were no tree over their words is told on stderr.
"""

import re
import sys
from collections.abc import Sequence
from itertools import islice, zip_longest
from pathlib import Path

import click
from lexicon import Lexicon, read_lexicon, tags_of
from trees import ANY_LABEL, ANY_TAG, TRACE, Leaf, Tree, TreeBuilder, bare, linearize

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.text import read_lines

Tags = Sequence[Sequence[str]]  # for each word of a sentence those that it can have, likely ones first


def restore(tokens: Sequence[str], words: Sequence[str], tags: Tags = ()) -> Tree:
    """The tree over exactly these words that the tokens of a model come closest to, however wrong they are.

    A bracket that closes a label which is not open closes the innermost constituent; one whose label is open further
    out closes all up to there; what is never closed ends with the sentence. Words take leaves with one of their `tags`,
    as far as the order of both allows. Leaves that no word takes are left out; a word that takes none stands beside
    the word before it, or at the end of the sentence in the last of the outermost constituents. The inverse of
    `linearize`, for words that can have the tags that they have in the tree, or any.
    """
    parts = [(token[0], bare(re.sub("[()]", "", token))) for token in tokens]
    *taken, left = _take(found_tags(tokens), words, tags or [()] * len(words))
    builder = TreeBuilder()
    leaves = iter(taken)
    for kind, name in parts:
        if kind == "(":
            builder.begin(name or ANY_LABEL)
        elif kind == ")":
            builder.end(builder.opened_since(name) or min(1, len(builder.open)))
        else:
            builder.leaves += next(leaves)
    builder.end(len(builder.open))
    return _with_end(builder.tree(), left)


def found_tags(tokens: Sequence[str]) -> list[str]:
    """The tags among the tokens of a model."""
    names = (bare(re.sub("[()]", "", token)) for token in tokens if token[0] not in "()")
    return [name if name and name != TRACE else ANY_TAG for name in names]


def best_fitting(outputs: Sequence[Sequence[str]], tags: Tags) -> Sequence[str]:
    """The tokens whose tags fit the words with the fewest edits; of equal ones the first."""
    return min(outputs, key=lambda tokens: align(found_tags(tokens), tags)[0])


def _take(found: Sequence[str], words: Sequence[str], tags: Tags) -> list[list[Leaf]]:
    """The leaves in the place of each tag that was found: none, one, or more; and at last those at the end."""
    end = len(found)
    _, places = align(found, tags)
    aligned = [number for number, place in enumerate(places) if place is not None]
    last = aligned[-1] if aligned else -1
    here = next((place for place in places if place is not None), end)
    taken: list[list[Leaf]] = [[] for _ in range(end + 1)]
    for number, (word, likely, place) in enumerate(zip(words, tags, places, strict=True)):
        if place is not None:
            here = place
        tag = next(iter(likely), ANY_TAG) if place is None else found[place]
        taken[here if number <= last else end].append(Leaf(tag, word))
    return taken


def align(found: Sequence[str], tags: Tags) -> tuple[int, list[int | None]]:
    """The fewest edits, and with them for each word the place of its tag among those found, in order, or None.

    An edit is a word without a tag, a tag without a word, or a word with a tag that it cannot have. Of several ways
    it is the one that keeps words and tags together from the beginning.
    """
    if len(found) == len(tags) and not any(map(_misfit, found, tags)):  # nearly all trees of a treebank
        return 0, list(range(len(found)))
    edits = [list(range(len(found), -1, -1))]  # that are needed from each tag on, after the last word; then before it
    for likely in reversed(tags):
        after = edits[-1]
        row = [after[-1] + 1]
        for place in range(len(found) - 1, -1, -1):
            together = after[place + 1] + _misfit(found[place], likely)
            row.append(min(together, after[place] + 1, row[-1] + 1))
        edits.append(row[::-1])
    places: list[int | None] = []
    place = 0
    for likely, here, after in zip(tags, edits[:0:-1], edits[-2::-1], strict=True):
        while True:
            if place < len(found) and here[place] == after[place + 1] + _misfit(found[place], likely):
                places.append(place)
                place += 1
                break
            if here[place] == after[place] + 1:
                places.append(None)
                break
            place += 1
    return edits[-1][0], places


def _misfit(tag: str, likely: Sequence[str]) -> bool:
    return bool(likely) and tag not in likely


def _with_end(tree: Tree, leaves: Sequence[Leaf]) -> Tree:
    """The tree with more leaves at its end, in the outermost constituent that ends there."""
    spans = list(tree.constituents)
    last = next((place for place, span in enumerate(spans) if span.end == len(tree.leaves)), None)
    if last is not None:
        spans[last] = spans[last]._replace(end=len(tree.leaves) + len(leaves))
    return Tree((*tree.leaves, *leaves), tuple(spans))


@command("restore.py")
@click.argument("lexicon", type=PathName())
@click.argument("text", type=PathName())
@click.argument("output", type=PathName())
@click.argument("n", type=click.IntRange(min=1), default=1)
def main(lexicon: Path, text: Path, output: Path, n: int) -> None:
    """Write a tree for each line of TEXT to stdout, the one that OUTPUT has for it, or the best of N."""
    print_restored(read_lexicon(lexicon), text, output, n)


def print_restored(known: Lexicon, text: Path, output: Path, nbest: int = 1) -> None:
    lines = read_lines(output)
    groups = iter(lambda: [line.split() for line in islice(lines, nbest)], [])
    count = mended = 0
    for count, (line, outputs) in enumerate(zip_longest(read_lines(text), groups), 1):
        if line is None or outputs is None or len(outputs) < nbest:
            ended = text if line is None else output
            raise UserError(f"{ended} ends before sentence {count}, or within it: not the output for this text")
        words = line.split()
        tags = tags_of(words, known)
        tokens = best_fitting(outputs, tags)
        tree = restore(tokens, words, tags)
        mended += linearize(tree) != tokens
        print(tree)
    print(f"{mended} of {count} outputs were no tree over their words and had to be mended", file=sys.stderr)


if __name__ == "__main__":
    main()
