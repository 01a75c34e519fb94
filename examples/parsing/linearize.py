"""Trees to the two sides of a parallel text, for a model to learn parsing as translation.

    python linearize.py LEXICON PREFIX TREES     writes PREFIX.txt, PREFIX.words and PREFIX.tree

PREFIX.txt has the words of each tree as they are, PREFIX.words as the model sees them, known ones and classes,
PREFIX.tree the brackets.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from lexicon import model_words, read_lexicon
from trees import linearize, read_trees

from nmtkit.errors import NmtkitError
from nmtkit.staging import staged_file


def main(lexicon: Path, prefix: str, trees: Path) -> None:
    known = read_lexicon(lexicon)
    with ExitStack() as stack:
        text, source, target = (
            stack.enter_context(staged_file(Path(f"{prefix}.{ending}"))) for ending in ("txt", "words", "tree")
        )
        for tree in read_trees(trees):
            text.write(f"{' '.join(tree.words)}\n".encode())
            source.write(f"{' '.join(model_words(tree.words, known))}\n".encode())
            target.write(f"{' '.join(linearize(tree))}\n".encode())


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except NmtkitError as error:
        sys.exit(f"error: {error}")
