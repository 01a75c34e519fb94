"""Converts trees to parallel text, for training a parser as a translation model.

    python linearize.py LEXICON PREFIX TREES

writes three files with a line per tree: its words to PREFIX.txt, the input of the model (known words and classes) to
PREFIX.words, the linearized tree to PREFIX.tree. Checks that every tree can be restored from its line.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import click
from lexicon import model_words, read_lexicon
from restore import restore
from trees import linearize, read_trees

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import RunError
from nmtkit.storage.atomic import staged_file


@command("linearize.py")
@click.argument("lexicon", type=PathName())
@click.argument("prefix")
@click.argument("trees", type=PathName())
def main(lexicon: Path, prefix: str, trees: Path) -> None:
    """Write PREFIX.txt, PREFIX.words and PREFIX.tree, with a line for each of TREES."""
    known = read_lexicon(lexicon)
    with ExitStack() as stack:
        text, source, target = (
            stack.enter_context(staged_file(Path(f"{prefix}.{ending}"))) for ending in ("txt", "words", "tree")
        )
        count = 0
        for count, tree in enumerate(read_trees(trees), 1):
            tokens = linearize(tree)
            if restore(tokens, tree.words) != tree:
                raise RunError(f"{trees}: tree {count} cannot be restored from {' '.join(tokens)}")
            text.write(f"{' '.join(tree.words)}\n".encode())
            source.write(f"{' '.join(model_words(tree.words, known))}\n".encode())
            target.write(f"{' '.join(tokens)}\n".encode())
    print(f"{trees}: {count} trees, each restorable from its tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
