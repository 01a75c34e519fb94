"""What training has seen of words: those that a model knows, classes for all others, and the tags of each.

    python lexicon.py SIZE TREES... > LEXICON     the SIZE most frequent words of those that come more than once

A line of a lexicon is a word or a class, and its tags, frequent ones first. A word that comes only once in training is
its class there, so that training shows what a class stands for.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import click
from trees import Leaf, read_trees

from nmtkit.cli.command import command
from nmtkit.cli.options import PathName
from nmtkit.text import read_lines

Lexicon = Mapping[str, Sequence[str]]  # the tags of each word and class, frequent ones first

_ENDINGS = re.compile(
    "(ing|ed|tion|sion|ity|ness|ment|able|ible|al|ous|ive|less|ful|ic|ly|est|er|or|ist|ism|ies|es|ss|us|s|y|e)$"
)


def word_class(word: str) -> str:
    """What can be seen of a word: digits, capitals, a hyphen, and an English ending."""
    digits = "-digit" * any(character.isdigit() for character in word)
    capital = "-capital" * word[0].isupper() + "-capitals" * (word.isupper() and len(word) > 1)
    hyphen = "-hyphen" * ("-" in word)
    ending = _ENDINGS.search(word.lower()[2:])  # of a stem with two letters at least
    return f"unknown{digits}{capital}{hyphen}" + (f"-{ending[0]}" if ending else "")


def model_words(words: Sequence[str], known: Container[str]) -> list[str]:
    """The words of a sentence as the model sees them: each itself, in lower case at the beginning, or its class."""
    seen = [word if word in known else word_class(word) for word in words]
    if words and words[0] not in known and words[0].lower() in known:
        seen[0] = words[0].lower()
    return seen


def tags_of(words: Sequence[str], lexicon: Lexicon) -> list[Sequence[str]]:
    """The tags that each word of a sentence can have; none where its class has not been seen either."""
    return [lexicon.get(word, ()) for word in model_words(words, lexicon)]


def make_lexicon(size: int, leaves: Iterable[Leaf]) -> dict[str, "Counter[str]"]:
    """How often each known word, and each class of others, has which tag."""
    seen = Counter(leaves)
    words: Counter[str] = Counter()
    for leaf, count in seen.items():
        words[leaf.word] += count
    known = {word for word, count in words.most_common(size) if count > 1}
    lexicon: dict[str, Counter[str]] = {}
    for (tag, word), count in seen.items():
        lexicon.setdefault(word if word in known else word_class(word), Counter())[tag] += count
    return lexicon


def read_lexicon(path: Path) -> Lexicon:
    return {word: tags for word, *tags in map(str.split, read_lines(path))}


@command("lexicon.py")
@click.argument("size", type=click.IntRange(min=0))
@click.argument("trees", nargs=-1, required=True, type=PathName())
def main(size: int, trees: tuple[Path, ...]) -> None:
    """Write the lexicon of TREES to stdout, with the SIZE most frequent of the words that come more than once."""
    lexicon = make_lexicon(size, (leaf for path in trees for tree in read_trees(path) for leaf in tree.leaves))
    for word, tags in lexicon.items():
        print(word, *(tag for tag, _ in tags.most_common()))


if __name__ == "__main__":
    main()
