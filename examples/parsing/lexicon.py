"""The lexicon of a parser: known words, classes of unknown words, and the tags of each.

    python lexicon.py SIZE TREES... > LEXICON

keeps the SIZE most frequent words among those that occur more than once.

Each line of a lexicon contains a word or a class, and its tags in order of decreasing frequency. Training replaces
words that occur only once by their classes, so that the model learns the classes.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from trees import Leaf, Tree, read_trees

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.errors import UserError
from nmtkit.text.reading import read_lines

Lexicon = Mapping[str, Sequence[str]]  # tags of each word or class, most frequent first

_SUFFIXES = re.compile(
    "(ing|ed|tion|sion|ity|ness|ment|able|ible|al|ous|ive|less|ful|ic|ly|est|er|or|ist|ism|ies|es|ss|us|s|y|e)$"
)


def word_class(word: str) -> str:
    """The class of an unknown word, from its digits, capitals, hyphen and English suffix."""
    digits = "-digit" * any(character.isdigit() for character in word)
    capital = "-capital" * word[0].isupper() + "-capitals" * (word.isupper() and len(word) > 1)
    hyphen = "-hyphen" * ("-" in word)
    suffix = _SUFFIXES.search(word.lower()[2:])  # the stem has at least two letters
    return f"unknown{digits}{capital}{hyphen}" + (f"-{suffix[0]}" if suffix else "")


def model_words(words: Sequence[str], known: Container[str]) -> list[str]:
    """The input of the model for a sentence: known words, and the classes of others.

    The first word is lowercased if only its lowercase form is known.
    """
    seen = [word if word in known else word_class(word) for word in words]
    if words and words[0] not in known and words[0].lower() in known:
        seen[0] = words[0].lower()
    return seen


def tags_of(words: Sequence[str], lexicon: Lexicon) -> list[Sequence[str]]:
    """The possible tags of each word of a sentence; empty if the lexicon has neither the word nor its class."""
    return [lexicon.get(word, ()) for word in model_words(words, lexicon)]


def make_lexicon(size: int, leaves: Iterable[Leaf]) -> dict[str, "Counter[str]"]:
    """Count the tags of each known word and of each class of unknown words."""
    seen = Counter(leaves)
    words: Counter[str] = Counter()
    for leaf, count in seen.items():
        words[leaf.word] += count
    known = {word for word, count in words.most_common(size) if count > 1}
    lexicon: dict[str, Counter[str]] = {}
    for (tag, word), count in seen.items():
        lexicon.setdefault(word if word in known else word_class(word), Counter())[tag] += count
    return lexicon


def counted_trees(paths: Sequence[Path]) -> Iterator[Tree]:
    """The trees of files, the treebank first, without the trees of later files that repeat the treebank.

    With repetitions, no word of the treebank would be rare, and the model would learn no class of unknown words.
    """
    treebank = set()
    for tree in read_trees(paths[0]):
        treebank.add(str(tree))
        yield tree
    for path in paths[1:]:
        yield from (tree for tree in read_trees(path) if str(tree) not in treebank)


def read_lexicon(path: Path) -> Lexicon:
    """Read a lexicon. Raises UserError for a line without tags."""
    lexicon = {}
    for number, line in enumerate(read_lines(path), 1):
        match line.split():
            case [word, *tags] if tags:
                lexicon[word] = tags
            case _:
                raise UserError(f"{path}, line {number}: not a word and its tags")
    return lexicon


@command("lexicon.py")
@click.argument("size", type=click.IntRange(min=0))
@click.argument("trees", nargs=-1, required=True, type=PathName())
def main(size: int, trees: tuple[Path, ...]) -> None:
    """Print the lexicon of TREES with the SIZE most frequent words among those that occur more than once.

    Trees of the first file that others repeat are counted once.
    """
    lexicon = make_lexicon(size, (leaf for tree in counted_trees(trees) for leaf in tree.leaves))
    for word, tags in lexicon.items():
        print(word, *(tag for tag, _ in tags.most_common()))


if __name__ == "__main__":
    main()
