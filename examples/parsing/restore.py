"""The output of a model to trees over the words that it was given.

    python restore.py TEXT OUTPUT > TREES     a tree for each line of TEXT, whatever OUTPUT says

How many lines of the output were no tree over their words is told on stderr.
"""

import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from trees import Tree, linearize, restore

from nmtkit.errors import NmtkitError, UserError
from nmtkit.text import read_lines


def restored(text: Path, output: Path) -> Iterator[tuple[Tree, bool]]:
    """The tree of each sentence, and whether the output was that tree as it stood."""
    for number, (words, tokens) in enumerate(zip_longest(read_lines(text), read_lines(output)), 1):
        if words is None or tokens is None:
            raise UserError(f"{text if words is None else output} ends before line {number}: not output for this text")
        tree = restore(tokens.split(), words.split())
        yield tree, linearize(tree) == tokens.split()


def main(text: Path, output: Path) -> None:
    count = mended = 0
    for tree, as_it_stood in restored(text, output):
        print(tree)
        count += 1
        mended += not as_it_stood
    print(f"{mended} of {count} outputs were no tree over their words and had to be mended", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except NmtkitError as error:
        sys.exit(f"error: {error}")
