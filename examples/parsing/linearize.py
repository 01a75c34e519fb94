"""Trees to the two sides of a parallel text, for a model to learn parsing as translation.

    python linearize.py KNOWN PREFIX TREES     writes PREFIX.txt, PREFIX.words and PREFIX.tree

PREFIX.txt has the words of each tree as they are, PREFIX.words those of the list KNOWN and the classes of all others,
PREFIX.tree the brackets.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from rare_words import model_words
from trees import linearize, read_trees

from nmtkit.errors import NmtkitError
from nmtkit.staging import staged_file
from nmtkit.text import read_lines


def main(known: Path, prefix: str, trees: Path) -> None:
    words = set(read_lines(known))
    with ExitStack() as stack:
        text, source, target = (
            stack.enter_context(staged_file(Path(f"{prefix}.{ending}"))) for ending in ("txt", "words", "tree")
        )
        for tree in read_trees(trees):
            text.write(f"{' '.join(tree.words)}\n".encode())
            source.write(f"{' '.join(model_words(tree.words, words))}\n".encode())
            target.write(f"{' '.join(linearize(tree))}\n".encode())


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except NmtkitError as error:
        sys.exit(f"error: {error}")
