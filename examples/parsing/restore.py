"""Restores trees over the input words from the output of a model.

    python restore.py LEXICON TEXT OUTPUT [N] > TREES

writes a valid tree for each line of TEXT, even if OUTPUT is malformed.

With N, OUTPUT has N lines for each line of TEXT, most likely first; the line whose tags fit the words best is used. The
number of outputs that had to be repaired is printed to stderr.
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
from nmtkit.text.reading import read_lines

Tags = Sequence[Sequence[str]]  # the possible tags of each word of a sentence, most likely first


def restore(tokens: Sequence[str], words: Sequence[str], tags: Tags = ()) -> Tree:
    """The tree over exactly these words that is closest to the tokens of a model. Any tokens are accepted.

    Brackets are repaired as follows. A closing bracket whose label is not open closes the innermost constituent. One
    whose label is open further out closes all constituents up to that one. Constituents that are never closed end with
    the sentence.

    Words are aligned with the tags among the tokens by `align`. Tags without a word are dropped. A word without a tag
    is placed next to the word before it; at the end of the sentence it goes into the last outermost constituent.

    The inverse of `linearize` if `tags` allows the tags of the tree, or is empty.
    """
    parts = [(token[0], bare(re.sub("[()]", "", token))) for token in tokens]
    *assigned, rest = _assign_words(found_tags(tokens), words, tags or [()] * len(words))
    builder = TreeBuilder()
    leaves = iter(assigned)
    for kind, name in parts:
        if kind == "(":
            builder.begin(name or ANY_LABEL)
        elif kind == ")":
            builder.end(builder.depth_of(name) or min(1, len(builder.open)))
        else:
            builder.leaves += next(leaves)
    builder.end(len(builder.open))
    return _append(builder.tree(), rest)


def found_tags(tokens: Sequence[str]) -> list[str]:
    """The tags among the tokens of a model."""
    names = (bare(re.sub("[()]", "", token)) for token in tokens if token[0] not in "()")
    return [name if name and name != TRACE else ANY_TAG for name in names]


def best_fitting(outputs: Sequence[Sequence[str]], tags: Tags) -> Sequence[str]:
    """The first of the outputs whose tags align with the words with the fewest edits."""
    return min(outputs, key=lambda tokens: align(found_tags(tokens), tags)[0])


def _assign_words(found: Sequence[str], words: Sequence[str], tags: Tags) -> list[list[Leaf]]:
    """The leaves that replace each tag of the output, and then those that are appended to the sentence."""
    end = len(found)
    _, places = align(found, tags)
    aligned = [number for number, place in enumerate(places) if place is not None]
    last = aligned[-1] if aligned else -1
    here = next((place for place in places if place is not None), end)
    assigned: list[list[Leaf]] = [[] for _ in range(end + 1)]
    for number, (word, likely, place) in enumerate(zip(words, tags, places, strict=True)):
        if place is not None:
            here = place
        tag = next(iter(likely), ANY_TAG) if place is None else found[place]
        assigned[here if number <= last else end].append(Leaf(tag, word))
    return assigned


def align(found: Sequence[str], tags: Tags) -> tuple[int, list[int | None]]:
    """Align words with the tags of an output by minimum edit distance.

    Returns the number of edits, and for each word the index of its tag in `found`, or None. The indices increase. An
    edit is a word without a tag, a tag without a word, or a word with an impossible tag. Of several best alignments,
    the one that pairs words and tags earliest is returned.
    """
    if len(found) == len(tags) and not any(map(_mismatch, found, tags)):  # the common case
        return 0, list(range(len(found)))
    edits = [list(range(len(found), -1, -1))]  # edits[w][t] aligns the last w words with the tags from t on
    for likely in reversed(tags):
        after = edits[-1]
        row = [after[-1] + 1]
        for place in range(len(found) - 1, -1, -1):
            together = after[place + 1] + _mismatch(found[place], likely)
            row.append(min(together, after[place] + 1, row[-1] + 1))
        edits.append(row[::-1])
    places: list[int | None] = []
    place = 0
    for likely, here, after in zip(tags, edits[:0:-1], edits[-2::-1], strict=True):
        while True:
            if place < len(found) and here[place] == after[place + 1] + _mismatch(found[place], likely):
                places.append(place)
                place += 1
                break
            if here[place] == after[place] + 1:
                places.append(None)
                break
            place += 1
    return edits[-1][0], places


def _mismatch(tag: str, likely: Sequence[str]) -> bool:
    return bool(likely) and tag not in likely


def _append(tree: Tree, leaves: Sequence[Leaf]) -> Tree:
    """Append leaves to a tree, within the outermost constituent that ends with it."""
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
    """Print a tree for each line of TEXT, restored from its line in OUTPUT, or from the best of its N lines."""
    print_restored(read_lexicon(lexicon), text, output, n)


def print_restored(known: Lexicon, text: Path, output: Path, nbest: int = 1) -> None:
    """Print the restored trees. Raises UserError if `output` does not have `nbest` lines for each line of `text`."""
    lines = read_lines(output)
    groups = iter(lambda: [line.split() for line in islice(lines, nbest)], [])
    count = repaired = 0
    for count, (line, outputs) in enumerate(zip_longest(read_lines(text), groups), 1):
        if line is None or outputs is None or len(outputs) < nbest:
            ended = text if line is None else output
            raise UserError(f"{ended} ends before sentence {count}, or within it: not the output for this text")
        words = line.split()
        tags = tags_of(words, known)
        tokens = best_fitting(outputs, tags)
        tree = restore(tokens, words, tags)
        repaired += linearize(tree) != tokens
        print(tree)
    print(f"{repaired} of {count} outputs had to be repaired", file=sys.stderr)


if __name__ == "__main__":
    main()
